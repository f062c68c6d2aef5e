"""What Helm makes of a chart, and whether it is well made."""

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


def check_lint(chart, values):
    """That Helm finds nothing wrong. ``chart``: its folder."""
    import helm_python

    report = helm_python.lint(chart, values, strict=True)
    assert not report["errors"], report
    assert not [message for message in report["messages"] if message["severity"] >= 2], report


def check_schemas(objects, versions):
    """That each of several objects fits Kubernetes' schemas of these releases."""
    import kubernetes_validate

    assert len(objects) > 3
    for version in versions:
        for entry in objects:
            if entry["apiVersion"].startswith(("cert-manager.io/", "monitoring.coreos.com/")):
                continue  # not Kubernetes' own
            kubernetes_validate.validate(entry, version, strict=True)
