//! Finished jobs: a few in memory, the rest in the archive, within the retention limits.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use carrel_shim_client::messages::{FailureCode, JobCommand, JobInfo};
use carrel_shim_client::record_trimmed;

use super::archive::ArchivedRecord;
use super::archived::ArchivedJob;
use super::earlier_logs::EarlierLogs;
use super::output::JobOutputLog;
use super::{JobKey, Jobs, ROOM_FOR_OUTPUT, RequestRejection, SETTLED, STREAMS, StartLookup, charged, conflict};

/// The number of finished jobs in memory.
pub(super) const IN_MEMORY: usize = 128;
/// How many of those were loaded from the archive on request.
const RECALLED: usize = 64;
/// The maximum in memory while a client that lists all jobs does not read.
const LISTED: usize = 4096;

/// The position of a client in the list of all jobs: first the archive, then memory.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct JobCursor {
    archived: u64,
    next: JobKey,
}

/// The oldest kept job of the archive.
#[derive(Clone, Copy, Debug)]
pub(super) struct OldestJob {
    offset: u64,
    ended: Instant,
}

// === impl Jobs ===

impl Jobs {
    /// The next job of a listing.
    pub(crate) fn next_listed(&self, cursor: &mut JobCursor) -> Option<JobInfo> {
        while let Some(found) = self.archive.next(cursor.archived, 0) {
            cursor.archived = found.next;
            if let Ok(job) = found.job.recall() {
                return Some(job.info(&self.logs_path));
            }
        }
        let (key, job) = self.jobs.range(cursor.next..).find(|(_, job)| !job.archived)?;
        cursor.next = key + 1;
        Some(job.info(&self.logs_path))
    }

    /// The jobs that clients wait for, and whether a listing is active: those are not moved meanwhile.
    pub(crate) fn pin(&mut self, waited: HashSet<JobKey>, listing: bool) {
        (self.waited, self.listing) = (waited, listing);
    }

    /// Whether an id belongs to a job in the archive, which is then loaded.
    pub(super) fn recall(&mut self, id: &str) -> Option<JobKey> {
        let ArchivedRecord { forgotten: false, job, .. } = self.archive.find(id)? else { return None };
        let (key, mut job) = (job.key, job.recall().ok()?);
        job.archived = true;
        self.by_id.insert(id.to_owned(), key);
        self.jobs.insert(key, Box::new(job));
        self.recalled.push_back(key);
        Some(key)
    }

    /// What is known about an id without a job in memory.
    pub(super) fn look_up_finished(&mut self, id: &str, command: &JobCommand) -> Result<StartLookup, RequestRejection> {
        let trace = self.archive.command_hash(command);
        let found = self.archive.find(id).map(|found| (found.forgotten, found.job.trace));
        match found.or_else(|| self.archive.unwritten(id).map(|trace| (true, trace))) {
            None => Ok(StartLookup::New),
            Some((_, before)) if before != trace => Err(conflict(id)),
            Some((false, _)) => self.recall(id).map(StartLookup::Attached).ok_or_else(|| pruned(id)),
            Some((true, _)) => Err(pruned(id)),
        }
    }

    /// Whether there is, or was, a job with that id.
    pub(super) fn is_known(&self, id: &str) -> bool {
        self.by_id.contains_key(id) || self.archive.find(id).is_some() || self.archive.unwritten(id).is_some()
    }

    /// Whether a job has to stay in memory.
    fn is_pinned(&self, key: JobKey) -> bool {
        self.waited.contains(&key) || self.jobs.get(&key).is_some_and(|job| job.viewers > 0)
    }

    /// Moves unused jobs to the archive. A job that cannot be written stays.
    pub(crate) fn archive_surplus(&mut self) {
        let mut place = 0;
        while self.recalled.len() > RECALLED {
            let Some(key) = self.recalled.get(place).copied() else { break };
            if self.is_pinned(key) {
                place += 1;
                continue;
            }
            self.recalled.remove(place);
            self.drop_from_memory(key);
        }
        let mut place = 0;
        while self.finished.len() > if self.listing { LISTED } else { IN_MEMORY } {
            let Some(key) = self.finished.get(place).copied() else { return };
            if self.is_pinned(key) {
                place += 1;
                continue;
            }
            if let Some(job) = self.jobs.get(&key) {
                let trace = job.trace.unwrap_or_else(|| self.archive.command_hash(&job.command));
                let archived = ArchivedJob::of(job, key, trace);
                if self.archive.push(&self.logs, &archived, false).is_err() {
                    return;
                }
            }
            self.finished.remove(place);
            self.drop_from_memory(key);
        }
    }

    fn drop_from_memory(&mut self, key: JobKey) {
        if let Some(job) = self.jobs.remove(&key) {
            self.by_id.remove(&job.id);
        }
    }

    // --- bounds

    /// Prunes finished jobs beyond the retention limits. Followers are not interrupted.
    pub(super) fn prune(&mut self, now: Instant) -> Option<Instant> {
        while self.taken() >= self.keep.total_bytes && self.trim_earlier() {}
        while let Some(oldest) = self.oldest() {
            match self.due(oldest.ended, now) {
                Some(due) if due > now => return Some(due),
                None => return None,
                Some(_) if !self.forget_archived(oldest.offset) => return None,
                Some(_) => self.oldest = None,
            }
        }
        let mut place = 0;
        while let Some(key) = self.finished.get(place).copied() {
            let ended = self.jobs.get(&key).and_then(|job| job.ended).unwrap_or(now);
            match self.due(ended, now) {
                Some(due) if due > now => return Some(due),
                None => return None,
                Some(_) if self.jobs.get(&key).is_some_and(|job| job.viewers > 0) => place += 1,
                Some(_) => {
                    self.finished.remove(place);
                    self.forget_job(key);
                }
            }
        }
        None
    }

    /// When to prune the oldest job, which ended then: now if there are too many, or if they use too much space.
    fn due(&self, ended: Instant, now: Instant) -> Option<Instant> {
        let settled = now.saturating_duration_since(ended) >= SETTLED;
        let total = self.keep.total_bytes;
        let most = if settled { total } else { total.saturating_add(total / 4) };
        let too_many = self.finished.len() + self.archive.counts().0 > self.keep.ended_jobs as usize;
        if too_many || self.taken() >= most {
            return Some(now);
        }
        ended.checked_add(Duration::from_millis(self.keep.ended_ms))
    }

    /// The oldest kept job of the archive.
    fn oldest(&mut self) -> Option<OldestJob> {
        if self.oldest.is_none() && self.archive.counts().0 > 0 {
            let found = self.archive.next(self.first_kept, 0)?;
            self.first_kept = found.offset;
            self.oldest = Some(OldestJob { offset: found.offset, ended: found.job.ended() });
        }
        self.oldest
    }

    /// Prunes the oldest finished jobs to make space for the output of running ones.
    pub(super) fn make_room(&mut self) {
        while self.keep.total_bytes.saturating_sub(self.taken()) < ROOM_FOR_OUTPUT {
            if self.trim_earlier() || self.trim_archived() {
                continue;
            }
            let unwatched = |key: &JobKey| self.jobs.get(key).is_some_and(|job| job.viewers == 0 && charged(job) > 0);
            let Some(place) = self.finished.iter().position(unwatched) else { return };
            if let Some(key) = self.finished.remove(place) {
                self.forget_job(key);
            }
        }
    }

    /// The disk usage of all outputs, including those of earlier starts.
    pub(super) fn taken(&self) -> u64 {
        self.kept_bytes.saturating_add(self.earlier.as_ref().map_or(0, EarlierLogs::bytes))
    }

    /// Removes the oldest output of an earlier start; returns whether there was one.
    fn trim_earlier(&mut self) -> bool {
        if self.earlier.as_ref().is_some_and(EarlierLogs::has_unknown) {
            self.earlier = Some(EarlierLogs::find(&self.logs, |job| self.is_known(job)));
        }
        self.earlier.as_mut().is_some_and(|earlier| earlier.trim(&self.logs))
    }

    /// Prunes the oldest job of the archive that has output and no follower; returns whether there was one.
    fn trim_archived(&mut self) -> bool {
        while let Some(found) = self.archive.next(self.first_charged, 1) {
            self.first_charged = found.next;
            if self.forget_archived(found.offset) {
                return true;
            }
        }
        false
    }

    /// Prunes a job of the archive; returns whether that was possible.
    fn forget_archived(&mut self, offset: u64) -> bool {
        let Some(ArchivedRecord { job, .. }) = self.archive.next(offset, 0).filter(|found| found.offset == offset)
        else {
            return false;
        };
        if self.is_pinned(job.key) || !self.archive.mark_pruned(offset) {
            return false;
        }
        self.oldest.take_if(|oldest| oldest.offset == offset);
        self.kept_bytes = self.kept_bytes.saturating_sub(job.charged());
        for (number, (name, archived)) in STREAMS.into_iter().zip(&job.streams).enumerate() {
            record_trimmed(&self.logs, &job.info.job, name, job.kept_of(number));
            JobOutputLog::recalled(format!("{}.{}.log", job.info.job, name.as_str()), *archived).remove(&self.logs);
        }
        self.recalled.retain(|key| *key != job.key);
        self.drop_from_memory(job.key);
        true
    }

    fn forget_job(&mut self, key: JobKey) {
        let Some(mut job) = self.jobs.remove(&key) else { return };
        self.by_id.remove(&job.id);
        let trace = job.trace.unwrap_or_else(|| self.archive.command_hash(&job.command));
        if self.archive.push(&self.logs, &ArchivedJob::of(&job, key, trace), true).is_err() {
            self.archive.remember(job.id.clone(), trace);
        }
        self.kept_bytes = self.kept_bytes.saturating_sub(charged(&job));
        for (name, stream) in STREAMS.into_iter().zip(&mut job.streams) {
            record_trimmed(&self.logs, &job.id, name, stream.length() - stream.missing());
            stream.remove(&self.logs);
        }
    }
}

fn pruned(id: &str) -> RequestRejection {
    RequestRejection::new(FailureCode::JobPruned, format!("job {id} has run and was pruned"))
}
