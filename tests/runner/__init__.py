"""The test runner of `./test`, with one module for each kind of test."""
