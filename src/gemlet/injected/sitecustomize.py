# What Python runs first in a program that `gemlet run` started with a hook for PyTorch. It leaves no trace but one
# import watcher, which goes once torch.optim is there: this directory leaves sys.path again, and whatever
# `sitecustomize` the program would have had without gemlet runs in its own name.
#
# Any Python may find this file on its path, also a very old one, so its syntax is older than gemlet's.
# No docstrings and annotations either: `python -OO -v` and the like are the program's business, not ours.
import sys

_HERE = __file__.rpartition("/")[0]
_AWAITED = "torch.optim.optimizer"  # torch imports it by itself, and it has the seam we use


def _watch():
    import os

    what = os.environ.get("GEMLET_TORCH")
    if not what or sys.version_info < (3, 8):
        return

    def load(module):
        from importlib import util

        spec = util.spec_from_file_location("_gemlet_torch_hook", _HERE + "/_gemlet_torch_hook.py")
        hook = util.module_from_spec(spec)
        sys.modules[spec.name] = hook
        spec.loader.exec_module(hook)
        hook.install(module, what)

    class Watcher:
        @classmethod
        def find_spec(cls, name, path=None, target=None):
            if name != _AWAITED:
                return None
            try:
                sys.meta_path.remove(cls)
            except ValueError:
                return None  # another thread is quicker
            for finder in sys.meta_path:
                find = getattr(finder, "find_spec", None)
                spec = find(name, path, target) if find else None
                if spec is not None:
                    try:
                        _then(spec.loader, load)
                    except Exception:  # an unusual loader: without the hook, then
                        pass
                    return spec
            return None

    sys.meta_path.insert(0, Watcher)


def _then(loader, load):
    # Shadows the loader's method for this one call: the module's loader stays what it would be without us.
    execute = loader.exec_module

    def exec_module(module):
        del loader.exec_module
        execute(module)
        try:
            load(module)
        except Exception:
            pass

    loader.exec_module = exec_module


try:
    _watch()
except Exception:
    pass
sys.path[:] = [entry for entry in sys.path if entry.rstrip("/") != _HERE]
_ours = sys.modules.pop("sitecustomize", None)  # kept: a Python of old clears what nobody holds, while it runs
# Not there: the ImportError says so to site.py, which expects it. Errors in it are reported as usual.
import sitecustomize  # noqa: E402, F401
