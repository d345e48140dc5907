def double(a):
    return a + 2
