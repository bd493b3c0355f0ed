# Image registries: one repository for each of our images, one for users' own, and ECR's pull-through caches.
locals {
  registry = "${data.aws_caller_identity.current.account_id}.dkr.ecr.${var.aws_region}.amazonaws.com"
  cached_registries = merge(
    {
      "ecr-public" = { url = "public.ecr.aws", credential = null }
      "quay"       = { url = "quay.io", credential = null }
      "kubernetes" = { url = "registry.k8s.io", credential = null }
    },
    # ECR caches Docker Hub only with a Docker Hub account.
    var.dockerhub_credential_arn == "" ? {} : {
      "dockerhub" = { url = "registry-1.docker.io", credential = var.dockerhub_credential_arn }
    },
  )
}

resource "aws_ecr_repository" "image" {
  for_each = local.images
  name     = each.value.repository
  # Tags are hashes of the image's inputs and never change their meaning.
  image_tag_mutability = "IMMUTABLE"
  # These images can be rebuilt, so they do not block a destroy. Users' own images do.
  force_delete = true

  image_scanning_configuration {
    scan_on_push = true
  }
}

resource "aws_ecr_lifecycle_policy" "image" {
  for_each   = local.images
  repository = aws_ecr_repository.image[each.key].name
  policy = jsonencode({
    rules = [{
      rulePriority = 1
      description  = "Enough to go back"
      selection    = { tagStatus = "any", countType = "imageCountMoreThan", countNumber = 30 }
      action       = { type = "expire" }
    }]
  })
}

resource "aws_ecr_repository" "custom" {
  name                 = local.custom_images
  image_tag_mutability = "MUTABLE"
}

resource "aws_ecr_pull_through_cache_rule" "cache" {
  for_each              = { for name, cached in local.cached_registries : name => cached if var.pull_through_caches }
  ecr_repository_prefix = each.key
  upstream_registry_url = each.value.url
  credential_arn        = each.value.credential
}
