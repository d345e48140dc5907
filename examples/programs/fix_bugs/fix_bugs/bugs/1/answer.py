def largest(a, b):
    return min(a, b)
