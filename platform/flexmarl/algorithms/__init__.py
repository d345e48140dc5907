"""Pure plug-ins of an experiment: sampling, grouping, credit, routing. No torch, no clock, no generator of their own.

Each kind of plug-in has one explicit dict of built-ins behind a `Registry`; other distributions add theirs through
entry points. A name that is registered twice raises.
"""
