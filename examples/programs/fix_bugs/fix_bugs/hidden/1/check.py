from answer import largest

assert largest(2, 3) == 3
assert largest(5, -5) == 5
