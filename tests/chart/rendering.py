"""What Helm makes of a chart."""

from __future__ import annotations


def render(chart, values, name="gemlet", namespace="gemlet-system"):
    """The objects, of all files."""
    import yaml

    files = chart.render(chart.merge_values(values), name=name, namespace=namespace)
    manifests = [text for name, text in files.items() if name.endswith(".yaml")]
    return [entry for text in manifests for entry in yaml.safe_load_all(text) if entry]


def by_kind(objects, kind, name=None):
    """The first of this kind, and of this name if one is given."""
    found = [entry for entry in objects if entry["kind"] == kind and name in (None, entry["metadata"]["name"])]
    assert found, f"no {kind} {name}"
    return found[0]
