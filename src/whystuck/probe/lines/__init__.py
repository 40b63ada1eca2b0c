"""The last lines of the user's code that each thread ran, kept where a crash cannot take them."""
