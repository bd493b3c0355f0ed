# Artifact Registry for our images and users' own, and a cache of Docker Hub. Images are built and pushed only when their inputs
# change: the tag is a hash of the inputs.
resource "google_artifact_registry_repository" "ours" {
  repository_id = var.prefix
  location      = var.region
  format        = "DOCKER"

  docker_config {
    immutable_tags = true
  }
}

resource "google_artifact_registry_repository" "custom" {
  repository_id = "${var.prefix}-custom-images"
  location      = var.region
  format        = "DOCKER"
}

resource "google_artifact_registry_repository" "dockerhub" {
  repository_id = "${var.prefix}-dockerhub"
  location      = var.region
  format        = "DOCKER"
  mode          = "REMOTE_REPOSITORY"

  remote_repository_config {
    docker_repository {
      public_repository = "DOCKER_HUB"
    }
  }
}

locals {
  root     = abspath("${path.module}/../..")
  registry = "${var.region}-docker.pkg.dev"
  inputs = {
    server = concat(
      ["pyproject.toml", "README.md", "LICENSE", "locks/dev.txt", "images/server/Containerfile", "images/server/build"],
      [for file in fileset(local.root, "src/**") : file if !can(regex("(__pycache__|\\.pyc$)", file))],
    )
    # Another version of Go compiles another program.
    dev-server = concat(
      ["locks/go.txt"],
      [for file in fileset(local.root, "images/dev-server/**") : file if !can(regex("(/dist/|_test\\.go$|README|/\\.)", file))],
    )
  }
  builds = {
    for kind, files in local.inputs : kind => {
      KIND     = kind
      CLOUD    = "gcp"
      REGISTRY = local.registry
      IMAGE    = "${var.project}/${google_artifact_registry_repository.ours.repository_id}/${kind}"
      TAG = substr(sha256(join("\n", [
        for file in sort(files) : "${file} ${filesha256("${local.root}/${file}")}"
      ])), 0, 16)
    }
  }
}

resource "null_resource" "server_image" {
  triggers = local.builds["server"]

  provisioner "local-exec" {
    command     = "${path.module}/../build-image"
    environment = self.triggers
  }
}

resource "null_resource" "dev_server_image" {
  triggers = local.builds["dev-server"]

  provisioner "local-exec" {
    command     = "${path.module}/../build-image"
    environment = self.triggers
  }
}
