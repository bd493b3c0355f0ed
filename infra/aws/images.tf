# Our images, built and pushed only when their inputs change. The tag is a hash of the inputs.
locals {
  root = abspath("${path.module}/../..")
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
  hashes = {
    for kind, files in local.inputs : kind => substr(sha256(join("\n", [
      for file in sort(files) : "${file} ${filesha256("${local.root}/${file}")}"
    ])), 0, 16)
  }
  images = {
    api-service           = { kind = "server", repository = "${var.prefix}-api-service" }
    reservation-processor = { kind = "server", repository = "${var.prefix}-reservation-processor" }
    availability-updater  = { kind = "server", repository = "${var.prefix}-availability-updater" }
    reservation-expiry    = { kind = "server", repository = "${var.prefix}-reservation-expiry" }
    ssh-proxy             = { kind = "server", repository = "${var.prefix}-ssh-proxy" }
    dev-server            = { kind = "dev-server", repository = "${var.prefix}-dev-server" }
  }
  # Environment of build-image.
  builds = {
    for name, image in local.images : name => {
      KIND     = image.kind
      CLOUD    = "aws"
      REGION   = var.aws_region
      REGISTRY = local.registry
      IMAGE    = aws_ecr_repository.image[name].name
      TAG      = local.hashes[image.kind]
    }
  }
}

resource "null_resource" "api_service_image" {
  triggers = local.builds["api-service"]

  provisioner "local-exec" {
    command     = "${path.module}/../build-image"
    environment = self.triggers
  }
}

resource "null_resource" "reservation_processor_image" {
  triggers = local.builds["reservation-processor"]

  provisioner "local-exec" {
    command     = "${path.module}/../build-image"
    environment = self.triggers
  }
}

resource "null_resource" "availability_updater_build" {
  triggers = local.builds["availability-updater"]

  provisioner "local-exec" {
    command     = "${path.module}/../build-image"
    environment = self.triggers
  }
}

resource "null_resource" "reservation_expiry_build" {
  triggers = local.builds["reservation-expiry"]

  provisioner "local-exec" {
    command     = "${path.module}/../build-image"
    environment = self.triggers
  }
}

resource "null_resource" "ssh_proxy_image" {
  triggers = local.builds["ssh-proxy"]

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
