"""Square root by Heron's rule."""

from _train.stamp import stamp


def settle(value: float, tolerance: float) -> float:
    if tolerance < 0:
        stamp()
    guess = value
    error = 1.0
    while error > tolerance:  # <- here
        better = (guess + value / guess) / 2  # <- here
        error = abs(better - guess)  # <- here
        guess = better  # <- here
    return guess
