"""Validates Kubernetes objects: validate_manifests.py TOOLS VERSION [CRDS] < objects.json > problems.json

TOOLS has what k8s/fetch.py made, CRDS a folder of schemas as `group/kind_version.json`. A kind without a schema is a
problem, as is a field without one. Problems are texts, none if all is well.
"""

import json
import pathlib
import sys

TOOLS = pathlib.Path(sys.argv[1])
sys.path.insert(0, str(TOOLS / "python"))

import jsonschema  # noqa: E402

BUILT_IN = TOOLS / "schemas" / sys.argv[2]
CRDS = pathlib.Path(sys.argv[3]) if len(sys.argv) > 3 else None
DEFINITIONS = json.loads((BUILT_IN / "_definitions.json").read_bytes())


def schema_of(api_version: str, kind: str):
    group, _, version = api_version.rpartition("/")
    # `rbac.authorization.k8s.io/v1` is in `...-rbac-v1.json`.
    parts = [kind.lower(), *([group.split(".")[0]] if group else []), version]
    built_in = BUILT_IN / ("-".join(parts) + ".json")
    if built_in.exists():
        schema = json.loads(built_in.read_bytes())
        # Files are named by a part of the group, types that are no objects have files too.
        names = schema.get("x-kubernetes-group-version-kind", [])
        return schema if {"group": group, "version": version, "kind": kind} in names else None
    custom = CRDS and CRDS / group / f"{kind.lower()}_{version}.json"
    return json.loads(custom.read_bytes()) if custom and custom.exists() else None


def problems(item: dict):
    kind, api_version = item.get("kind", ""), item.get("apiVersion", "")
    name = f"{kind} {item.get('metadata', {}).get('name')}"
    schema = schema_of(api_version, kind)
    if schema is None:
        yield f"{name}: no schema of {kind} in {api_version}"
        return
    resolver = jsonschema.RefResolver.from_schema(schema, store={DEFINITIONS["$id"]: DEFINITIONS})
    validator = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    for error in validator(schema, resolver=resolver).iter_errors(item):
        yield f"{name}: {error.json_path}: {error.message}"


json.dump([problem for item in json.load(sys.stdin) for problem in problems(item)], sys.stdout)
