"""Calls of the Helm library, read as JSON from standard input: Go's runtime stays out of the process of the tests."""

import asyncio
import json
import sys
from typing import Any

import helm_sdkpy


async def call(config: Any, asked: dict[str, Any]) -> dict[str, Any]:
    """Do one thing and return what came of it, or why it was refused."""
    do, chart = asked["do"], asked["chart"]
    try:
        if do == "lint":
            found = await helm_sdkpy.Lint(config).run(chart)
        else:
            action = {"install": helm_sdkpy.Install, "upgrade": helm_sdkpy.Upgrade}[do](config)
            found = await action.run("flexmarl", chart, values=asked["values"], wait=False, timeout=60)
    except helm_sdkpy.HelmError as error:
        return {"error": str(error)}
    return {"result": found}


async def main() -> None:
    """Answer all calls in one line."""
    asked = json.load(sys.stdin)
    config = helm_sdkpy.Configuration(namespace=asked["namespace"], kubeconfig=asked["kubeconfig"])
    answers = [await call(config, one) for one in asked["calls"]]
    sys.stdout.write(json.dumps(answers) + "\n")


asyncio.run(main())
