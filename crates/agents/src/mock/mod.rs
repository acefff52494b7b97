//! An agent that is built in: every kind of event on command.
