//! A sandbox behind its relay: many clients, none of which can touch another, and a guest that can touch none.

mod clients;
mod flow;
mod lies;
mod life;
