"""A wheel made on the spot: a server of the Model Context Protocol that misbehaves as it is told, and one that is well.

Written to the protocol without its SDK, so that a build installs nothing else.
"""

from tests.support.package_files import wheel

TOOLS = '''
"""A server that does what it is told to."""
import json, os, socket, sys, time

COUNT = 0


def tool(name, **properties):
    schema = {"type": "object", "properties": properties, "required": sorted(properties)}
    return {"name": name, "description": f"The tool {name}.", "inputSchema": schema}


LISTED = [
    tool("add", a={"type": "integer"}, b={"type": "integer"}), tool("count"), tool("act", what={"type": "string"}),
    tool("has a blank"),
]


def say(said):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **said}) + "\\n")
    sys.stdout.flush()


def text(said, failed=False):
    return {"content": [{"type": "text", "text": said}], "isError": failed}


def act(what):
    if what == "hang":
        time.sleep(3600)
    if what == "die":
        sys.stderr.write("no disk is left\\n")
        sys.stderr.flush()
        os._exit(3)
    if what == "endless_line":
        while True:
            sys.stdout.write("x" * 2**16)
    if what == "flood":
        while True:
            sys.stdout.write(json.dumps({"jsonrpc": "2.0", "method": "notifications/message"}) + "\\n")
    if what == "log":
        sys.stderr.write("x" * 2**20)
    if what == "chatter":
        print("Welcome!", flush=True)
        print(json.dumps([1]), flush=True)
    if what == "no_object":
        return 7
    if what == "no_list":
        return {"content": "seven"}
    if what == "large":
        return text("x" * 1000)
    if what == "huge":
        return text("x" * 2**21)
    if what == "fail":
        return text("it is not to be had", failed=True)
    if what == "picture":
        return {"content": [{"type": "image", "data": "AAAA", "mimeType": "image/png"}]}
    if what == "structure":
        return {"content": [], "structuredContent": {"sum": 7}}
    if what == "ask":
        say({"id": "mine", "method": "roots/list"})
        return text(json.loads(sys.stdin.readline())["error"]["message"])
    if what == "network":
        try:
            return text(repr(socket.create_connection(("1.1.1.1", 80), 5)))
        except OSError as error:
            return text(str(error), failed=True)
    if what == "list":
        return text(" ".join(sorted(os.listdir("/"))) + " env " + " ".join(sorted(os.environ)))
    return text("done")


def answer(asked):
    global COUNT
    method, given = asked["method"], asked.get("params", {})
    if method == "initialize":
        if "--hang" in sys.argv:
            time.sleep(3600)
        about = {"name": "tools", "version": "1.0"}
        return {"protocolVersion": given["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": about}
    if method == "ping":
        return {}
    if method == "tools/list":
        page = int(given.get("cursor", 0))
        more = {"nextCursor": str(page + 1)} if page + 1 < len(LISTED) else {}
        return {"tools": LISTED[page : page + 1], **more}
    name, given = given["name"], given["arguments"]
    if name == "add":
        if not all(isinstance(given.get(one), int) for one in "ab"):
            raise ValueError("a and b are integers")
        return text(str(given["a"] + given["b"]))
    if name == "count":
        COUNT += 1
        return text(str(COUNT))
    return act(given["what"])


def main():
    if "--die" in sys.argv:
        sys.exit("usage: tools --folder FOLDER")
    for line in sys.stdin:
        asked = json.loads(line)
        if "id" not in asked:
            continue
        try:
            say({"id": asked["id"], "result": answer(asked)})
        except ValueError as error:
            say({"id": asked["id"], "error": {"code": -32602, "message": str(error)}})


def broken():
    sys.exit("usage: broken --folder FOLDER")
'''
NAME = "mcp_tools"
SCRIPTS = "[console_scripts]\nmcp-tools = mcp_tools:main\nmcp-broken = mcp_tools:broken\n"


def tools_wheel() -> tuple[str, bytes]:
    """Return name and bytes of the wheel."""
    return wheel(code=TOOLS, name=NAME, extra={"entry_points.txt": SCRIPTS})
