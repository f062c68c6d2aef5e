"""For jupyterhub_config.py: each user's server, and what is started in it, has a share of the GPUs.

The group is of the user who runs the command: with LocalProcessSpawner and SystemdSpawner the person, so their
`[users]` quota holds; with containers take a CDI device instead.
"""

c = get_config()  # noqa: F821  JupyterHub's

LIMITS = ["--max", "50%", "--memory", "16GiB", "--strict"]


def share(spawner):
    """Starts the server in the group hub-USER."""
    start = ["gemlet", "run", "-q", "--group", f"hub-{spawner.user.name}", *LIMITS]
    spawner.cmd = [*start, "--", "jupyterhub-singleuser"]


c.Spawner.pre_spawn_hook = share
