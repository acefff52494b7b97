//! What users share, so that none of them can have all of it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use carrel_store::Namespace;

/// Who has a share: the daemon's own user, or another caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ShareHolder(Option<u32>);

/// How much there is of something. The daemon's own user may have all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareLimits {
    /// What all may have together.
    pub total: u64,
    /// What one other caller may have.
    pub each: u64,
    /// What is left to the daemon's own user.
    pub reserved: u64,
}

/// What is in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShareUse {
    total: u64,
    others: u64,
    holder: u64,
}

/// Why there is no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShareExceeded {
    /// Everything that this caller may have is in use.
    #[error("{0} is the limit of all users together")]
    Total(u64),
    /// This caller has as much as one may.
    #[error("{0} is the limit of one user")]
    Each(u64),
}

/// A number of places that users share. Clones are the same.
#[derive(Clone, Debug)]
pub struct ShareQuota {
    limits: ShareLimits,
    taken: Arc<Mutex<HashMap<ShareHolder, u64>>>,
}

/// Places that are free again when this is dropped.
#[derive(Debug)]
pub struct SharePermit {
    quota: ShareQuota,
    holder: ShareHolder,
    amount: u64,
}

// === impl ShareHolder ===

impl ShareHolder {
    /// The daemon's own user.
    pub const OWNER: Self = Self(None);

    /// Another user of this machine.
    pub const fn user(user: u32) -> Self {
        Self(Some(user))
    }
}

impl From<Namespace> for ShareHolder {
    fn from(namespace: Namespace) -> Self {
        match namespace {
            Namespace::Daemon => Self::OWNER,
            Namespace::User(user) => Self::user(user),
            // No user has this number.
            Namespace::Key => Self::user(u32::MAX),
        }
    }
}

// === impl ShareUse ===

impl ShareUse {
    /// What a caller finds in use, of what each holder has.
    pub fn seen_by(holder: ShareHolder, taken: impl Iterator<Item = (ShareHolder, u64)>) -> Self {
        taken.fold(Self::default(), |used, (other, amount)| Self {
            total: used.total.saturating_add(amount),
            others: used.others.saturating_add(if other == ShareHolder::OWNER { 0 } else { amount }),
            holder: used.holder.saturating_add(if other == holder { amount } else { 0 }),
        })
    }
}

// === impl ShareLimits ===

impl ShareLimits {
    /// Refuses what exceeds the share of a caller.
    pub fn check(&self, holder: ShareHolder, used: ShareUse, amount: u64) -> Result<(), ShareExceeded> {
        let is_over = |used: u64, limit: u64| used.saturating_add(amount) > limit;
        if is_over(used.total, self.total) {
            return Err(ShareExceeded::Total(self.total));
        }
        if holder == ShareHolder::OWNER {
            return Ok(());
        }
        if is_over(used.holder, self.each) {
            return Err(ShareExceeded::Each(self.each));
        }
        let others = self.total.saturating_sub(self.reserved);
        if is_over(used.others, others) { Err(ShareExceeded::Total(others)) } else { Ok(()) }
    }
}

// === impl ShareQuota ===

impl ShareQuota {
    /// So many places.
    pub fn new(limits: ShareLimits) -> Self {
        Self { limits, taken: Arc::default() }
    }

    /// Takes a place.
    pub fn take(&self, holder: ShareHolder) -> Result<SharePermit, ShareExceeded> {
        self.take_many(holder, 1)
    }

    /// Takes so many places, or none.
    pub fn take_many(&self, holder: ShareHolder, amount: u64) -> Result<SharePermit, ShareExceeded> {
        let mut taken = self.lock();
        self.limits.check(holder, seen(&taken, holder), amount)?;
        let entry = taken.entry(holder).or_default();
        *entry = entry.saturating_add(amount);
        Ok(SharePermit { quota: self.clone(), holder, amount })
    }

    /// Counts so many places that are in use already, beyond the limits if need be.
    pub fn charge(&self, holder: ShareHolder, amount: u64) -> SharePermit {
        let mut taken = self.lock();
        let entry = taken.entry(holder).or_default();
        *entry = entry.saturating_add(amount);
        SharePermit { quota: self.clone(), holder, amount }
    }

    /// Whether a caller could take so many places now.
    pub fn has_room(&self, holder: ShareHolder, amount: u64) -> bool {
        self.limits.check(holder, seen(&self.lock(), holder), amount).is_ok()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<ShareHolder, u64>> {
        // Nothing in there is ever half done.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn seen(taken: &HashMap<ShareHolder, u64>, holder: ShareHolder) -> ShareUse {
    ShareUse::seen_by(holder, taken.iter().map(|(holder, amount)| (*holder, *amount)))
}

// === impl SharePermit ===

impl SharePermit {
    /// Whose it is.
    pub fn holder(&self) -> ShareHolder {
        self.holder
    }

    /// How many places it has.
    pub fn amount(&self) -> u64 {
        self.amount
    }

    /// Takes so many places more, or none.
    pub fn grow(&mut self, amount: u64) -> Result<(), ShareExceeded> {
        // What is taken beside it is given back with it.
        let mut more = self.quota.take_many(self.holder, amount)?;
        self.amount = self.amount.saturating_add(std::mem::take(&mut more.amount));
        Ok(())
    }
}

impl Drop for SharePermit {
    fn drop(&mut self) {
        let mut taken = self.quota.lock();
        let left = taken.get(&self.holder).map_or(0, |places| places.saturating_sub(self.amount));
        if left == 0 {
            taken.remove(&self.holder);
        } else {
            taken.insert(self.holder, left);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: ShareLimits = ShareLimits { total: 8, each: 4, reserved: 2 };

    fn taken(quota: &ShareQuota, holder: ShareHolder) -> (Vec<SharePermit>, ShareExceeded) {
        let mut permits = Vec::new();
        loop {
            match quota.take(holder) {
                Ok(permit) => permits.push(permit),
                Err(exceeded) => return (permits, exceeded),
            }
        }
    }

    #[test]
    fn one_user_has_a_share_and_all_others_leave_a_part_to_the_daemons_own() {
        let quota = ShareQuota::new(LIMITS);
        let (first, exceeded) = taken(&quota, ShareHolder::user(1));
        assert_eq!((first.len(), exceeded), (4, ShareExceeded::Each(4)));
        let (second, exceeded) = taken(&quota, ShareHolder::user(2));
        assert_eq!((second.len(), exceeded), (2, ShareExceeded::Total(6)));
        let (own, exceeded) = taken(&quota, ShareHolder::OWNER);
        assert_eq!((own.len(), exceeded), (2, ShareExceeded::Total(8)));
        drop(first);
        assert_eq!(taken(&quota, ShareHolder::user(3)).0.len(), 4);
        drop((second, own));
        assert!(quota.lock().is_empty(), "whoever has nothing costs nothing");
    }

    #[test]
    fn places_are_taken_many_at_a_time_or_not_at_all() {
        let (quota, user) = (ShareQuota::new(LIMITS), ShareHolder::user(1));
        let mut permit = quota.take_many(user, 2).unwrap();
        assert_eq!(permit.grow(3), Err(ShareExceeded::Each(4)));
        assert_eq!((permit.grow(1), permit.amount()), (Ok(()), 3));
        assert_eq!(quota.take_many(user, 2).unwrap_err(), ShareExceeded::Each(4));
        let beyond = quota.charge(user, 5);
        assert!(!quota.has_room(user, 0) && quota.has_room(ShareHolder::OWNER, 0));
        drop((permit, beyond));
        assert!(quota.lock().is_empty() && quota.has_room(user, 4));
    }

    #[test]
    fn the_daemons_own_user_may_have_all() {
        let quota = ShareQuota::new(LIMITS);
        assert_eq!(taken(&quota, ShareHolder::OWNER).0.len(), 8);
    }
}
