"""For jupyterhub_config.py: each user's server, and what is started in it, has a share of the GPUs.

A hub that runs as root makes the group @hub-USER and lets only that user in: no other user can take the name, and the
limits are the hub's. Any other hub starts servers as itself, so the group hub-USER is its own.
With containers take a CDI device instead.
"""

import asyncio
import os

c = get_config()  # noqa: F821  JupyterHub's

RUN = ["gemlet", "run", "-q", "--strict"]
LIMITS = ["--max", "50%", "--memory", "16GiB"]


async def share(spawner):
    """Starts the server in the group of its user."""
    user = spawner.user.name
    if os.geteuid() != 0:
        spawner.cmd = [*RUN, "--group", f"hub-{user}", *LIMITS, "--", "jupyterhub-singleuser"]
        return
    join = [*RUN, "--group", f"@hub-{user}"]
    spawner.cmd = [*join, "--", "jupyterhub-singleuser"]
    # The group is there while the server starts, and then as long as the server.
    holder = ["sh", "-c", f"echo held; exec sleep {int(spawner.start_timeout)}"]
    made = await asyncio.create_subprocess_exec(
        *join, "--users", user, *LIMITS, "--", *holder, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE
    )
    if await made.stdout.readline() != b"held\n":
        raise RuntimeError(f"no share of the GPUs for {user}: gemlet's error is above")


c.Spawner.pre_spawn_hook = share
