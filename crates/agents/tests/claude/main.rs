//! Claude Code: conversion of its output, and conversations.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed precondition fails the test")]

mod conversation;
mod lines;
mod snapshots;
mod support;
