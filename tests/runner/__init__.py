"""The test runner behind `./test`: one room for each kind of thing that it runs."""
