//! Fair shares of a resource, so that no user can take all of it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use carrel_store::IdNamespace;

/// The holder of a share: the daemon's own user, or another caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ShareHolder(Option<u32>);

/// The limits of a resource. The daemon's own user may use all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareLimits {
    /// The limit for all callers in total.
    pub total: u64,
    /// The limit for each other caller.
    pub each: u64,
    /// What is reserved for the daemon's own user.
    pub reserved: u64,
}

/// The current use of a resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShareUse {
    total: u64,
    others: u64,
    holder: u64,
}

/// Why a share is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShareExceeded {
    /// All that this caller may use is in use.
    #[error("{0} is the limit of all users together")]
    Total(u64),
    /// This caller uses its whole share.
    #[error("{0} is the limit of one user")]
    Each(u64),
}

/// A resource that users share. Clones share the count.
#[derive(Clone, Debug)]
pub struct ShareQuota {
    limits: ShareLimits,
    used_by: Arc<Mutex<HashMap<ShareHolder, u64>>>,
}

/// Units of a resource, which are released on drop.
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

    /// Another user of this host.
    pub const fn user(user: u32) -> Self {
        Self(Some(user))
    }
}

impl From<IdNamespace> for ShareHolder {
    fn from(namespace: IdNamespace) -> Self {
        match namespace {
            IdNamespace::Daemon => Self::OWNER,
            IdNamespace::User(user) => Self::user(user),
            // No user has this id.
            IdNamespace::Key => Self::user(u32::MAX),
        }
    }
}

// === impl ShareUse ===

impl ShareUse {
    /// Sums up the use of all holders, from the perspective of one.
    pub fn seen_by(holder: ShareHolder, used_by: impl Iterator<Item = (ShareHolder, u64)>) -> Self {
        used_by.fold(Self::default(), |used, (other, amount)| Self {
            total: used.total.saturating_add(amount),
            others: used.others.saturating_add(if other == ShareHolder::OWNER { 0 } else { amount }),
            holder: used.holder.saturating_add(if other == holder { amount } else { 0 }),
        })
    }
}

// === impl ShareLimits ===

impl ShareLimits {
    /// Refuses an amount that exceeds the share of a caller.
    pub fn check(&self, holder: ShareHolder, used: ShareUse, amount: u64) -> Result<(), ShareExceeded> {
        let exceeds = |used: u64, limit: u64| used.saturating_add(amount) > limit;
        if exceeds(used.total, self.total) {
            return Err(ShareExceeded::Total(self.total));
        }
        if holder == ShareHolder::OWNER {
            return Ok(());
        }
        if exceeds(used.holder, self.each) {
            return Err(ShareExceeded::Each(self.each));
        }
        let others = self.total.saturating_sub(self.reserved);
        if exceeds(used.others, others) { Err(ShareExceeded::Total(others)) } else { Ok(()) }
    }
}

// === impl ShareQuota ===

impl ShareQuota {
    /// Creates a quota with these limits.
    pub fn new(limits: ShareLimits) -> Self {
        Self { limits, used_by: Arc::default() }
    }

    /// Acquires one unit.
    pub fn take(&self, holder: ShareHolder) -> Result<SharePermit, ShareExceeded> {
        self.take_many(holder, 1)
    }

    /// Acquires this many units, or none.
    pub fn take_many(&self, holder: ShareHolder, amount: u64) -> Result<SharePermit, ShareExceeded> {
        let mut used_by = self.lock();
        self.limits.check(holder, usage(&used_by, holder), amount)?;
        let entry = used_by.entry(holder).or_default();
        *entry = entry.saturating_add(amount);
        Ok(SharePermit { quota: self.clone(), holder, amount })
    }

    /// Charges units that are in use already, beyond the limits if necessary.
    pub fn charge(&self, holder: ShareHolder, amount: u64) -> SharePermit {
        let mut used_by = self.lock();
        let entry = used_by.entry(holder).or_default();
        *entry = entry.saturating_add(amount);
        SharePermit { quota: self.clone(), holder, amount }
    }

    /// Whether a caller could acquire this many units now.
    pub fn has_room(&self, holder: ShareHolder, amount: u64) -> bool {
        self.limits.check(holder, usage(&self.lock(), holder), amount).is_ok()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<ShareHolder, u64>> {
        // No update in there is partial, so a poisoned lock is usable.
        self.used_by.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn usage(used_by: &HashMap<ShareHolder, u64>, holder: ShareHolder) -> ShareUse {
    ShareUse::seen_by(holder, used_by.iter().map(|(holder, amount)| (*holder, *amount)))
}

// === impl SharePermit ===

impl SharePermit {
    /// The holder of the units.
    pub fn holder(&self) -> ShareHolder {
        self.holder
    }

    /// The number of units.
    pub fn amount(&self) -> u64 {
        self.amount
    }

    /// Acquires this many units more, or none.
    pub fn grow(&mut self, amount: u64) -> Result<(), ShareExceeded> {
        // The new units are released together with this permit.
        let mut more = self.quota.take_many(self.holder, amount)?;
        self.amount = self.amount.saturating_add(std::mem::take(&mut more.amount));
        Ok(())
    }
}

impl Drop for SharePermit {
    fn drop(&mut self) {
        let mut used_by = self.quota.lock();
        let left = used_by.get(&self.holder).map_or(0, |units| units.saturating_sub(self.amount));
        if left == 0 {
            used_by.remove(&self.holder);
        } else {
            used_by.insert(self.holder, left);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: ShareLimits = ShareLimits { total: 8, each: 4, reserved: 2 };

    fn used_by(quota: &ShareQuota, holder: ShareHolder) -> (Vec<SharePermit>, ShareExceeded) {
        let mut permits = Vec::new();
        loop {
            match quota.take(holder) {
                Ok(permit) => permits.push(permit),
                Err(exceeded) => return (permits, exceeded),
            }
        }
    }

    #[test]
    fn each_user_has_a_share_and_a_part_is_reserved_for_the_daemons_own_user() {
        let quota = ShareQuota::new(LIMITS);
        let (first, exceeded) = used_by(&quota, ShareHolder::user(1));
        assert_eq!((first.len(), exceeded), (4, ShareExceeded::Each(4)));
        let (second, exceeded) = used_by(&quota, ShareHolder::user(2));
        assert_eq!((second.len(), exceeded), (2, ShareExceeded::Total(6)));
        let (own, exceeded) = used_by(&quota, ShareHolder::OWNER);
        assert_eq!((own.len(), exceeded), (2, ShareExceeded::Total(8)));
        drop(first);
        assert_eq!(used_by(&quota, ShareHolder::user(3)).0.len(), 4);
        drop((second, own));
        assert!(quota.lock().is_empty(), "a holder without units has no entry");
    }

    #[test]
    fn units_are_acquired_together_or_not_at_all() {
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
    fn the_daemons_own_user_may_use_everything() {
        let quota = ShareQuota::new(LIMITS);
        assert_eq!(used_by(&quota, ShareHolder::OWNER).0.len(), 8);
    }
}
