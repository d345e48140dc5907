from answer import double

assert double(4) == 8
assert double(0) == 0
