from answer import negated

assert negated(4) == -4
assert negated(-1) == 1
