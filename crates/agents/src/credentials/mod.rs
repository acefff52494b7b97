//! Keys and tokens for the agents, from the places where their owners keep them.
