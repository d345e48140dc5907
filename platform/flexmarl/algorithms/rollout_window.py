"""RLBoost's rule for how long the reserved devices generate at the start of a step (arXiv 2510.19225, section 3.1)."""

PART = 1.0 / 3.0
"""Of the difference that a step corrects."""


def next_window(window_s: float, generated_s: float, trainers_waited_s: float, others_idle_s: float) -> float:
    """Return the next step's window in seconds.

    `generated_s`: from the start of the step to the end of its last episode, which no window outlasts.
    `trainers_waited_s`: time that trainers with devices had no samples. `others_idle_s`: time that engines with devices
    of their own had nothing to generate before the step was taken.
    """
    correction = PART * abs(trainers_waited_s - others_idle_s)
    window_s = min(window_s, generated_s)
    return window_s - correction if trainers_waited_s < others_idle_s else window_s + correction
