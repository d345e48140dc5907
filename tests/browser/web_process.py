"""The web process of a module of tests, at the port that WEB_PORT names.

What the process spawns imports this module again, and needs nothing of it.
"""

import os

if __name__ == "__main__":
    from tests.browser import preloaded

    preloaded.begin()
    import uvicorn

    from flexmarl.controlplane.asgi import application

    os.dup2(2, 1)  # nobody reads the pipe of a fork's output
    uvicorn.run(application, lifespan="off", port=int(os.environ["WEB_PORT"]), log_level="warning")
