//! A sandbox behind its relay: many clients, isolated from each other and from the guest.

mod clients;
mod flow;
mod lifecycle;
mod rogue_guest;
