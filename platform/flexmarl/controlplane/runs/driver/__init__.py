"""The driver: feeds the core with ordered facts and carries its decisions to the outside.

Its loop is three verbs - take a batch, decide, commit - and then it pushes. Everything it knows is in the database, so
any number of drivers may run and any of them may die at any instruction.
"""
