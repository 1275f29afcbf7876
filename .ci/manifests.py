"""Checks what a schema can't say of the manifests of jobs with several pods, and takes the Job out of the JobSet, whose own
schema is not one of Kubernetes, so that it can be validated: manifests.py FILE... writes to standard output."""

import sys

import yaml


def check(job, subdomain, services):
    """The pods of an Indexed Job find each other and are as many as they think."""
    spec = job["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    variables = {v["name"]: v.get("value") for v in container.get("env", [])}
    pods = spec["completions"]
    assert spec["completionMode"] == "Indexed" and spec["parallelism"] == pods, "all pods must run at once"
    assert pod["restartPolicy"] == "Never", "a pod's processes must not start again by themselves"
    assert subdomain in services, f"no headless service is called {subdomain}"
    assert "REFRAIN_RENDEZVOUS_TOKEN" in variables, "the secret is missing"
    arguments = container["args"]
    if container.get("command") == ["torchrun"]:
        assert f"--nnodes={pods}" in arguments, "torchrun waits for another number of pods"
        assert any(a.startswith(f"--rdzv-endpoint={job['metadata']['name']}-0.{subdomain}:") for a in arguments)
        gpus = container["resources"]["limits"]["nvidia.com/gpu"]
        assert f"--nproc-per-node={gpus}" in arguments, "a process needs a GPU of its own"
    else:
        assert variables["WORLD_SIZE"] == str(pods), "WORLD_SIZE is not the number of pods"
        assert variables["REFRAIN_SERVICE"] == subdomain, "REFRAIN_SERVICE is another service"
        assert container["resources"]["limits"]["nvidia.com/gpu"] == "1", "a process uses one GPU"
    for rule in spec.get("podFailurePolicy", {}).get("rules", []):
        exits = rule.get("onExitCodes", {"containerName": container["name"]})
        assert exits["containerName"] == container["name"], "a rule for a container that does not exist"


def main():
    jobs = []
    for path in sys.argv[1:]:
        with open(path, encoding="utf-8") as file:
            documents = list(yaml.safe_load_all(file))
        services = {d["metadata"]["name"] for d in documents if d["kind"] == "Service" and d["spec"]["clusterIP"] == "None"}
        checked = 0
        for document in documents:
            if document["kind"] == "Job":
                check(document, document["spec"]["template"]["spec"]["subdomain"], services)
                checked += 1
            if document["kind"] == "JobSet":
                assert document["apiVersion"] == "jobset.x-k8s.io/v1alpha2"
                assert set(document["spec"]) == {"failurePolicy", "network", "replicatedJobs"}, document["spec"].keys()
                subdomain = document["spec"]["network"]["subdomain"]
                (replicated,) = document["spec"]["replicatedJobs"]
                assert replicated["replicas"] == 1, "all pods belong to one job"
                name = f"{document['metadata']['name']}-{replicated['name']}-0"
                job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, **replicated["template"]}
                check(job, subdomain, {subdomain})
                jobs.append(job)
                checked += 1
        assert checked, f"{path} has no job"
    yaml.safe_dump_all(jobs, sys.stdout)


main()
