"""Cases of functions that torch compiles again and again."""
