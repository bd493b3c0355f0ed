# Only Terraform reads this file, and it is refused. OpenTofu takes versions.tofu in its place.
terraform {
  required_version = "< 0.0.1" # OpenTofu only: use tofu instead of terraform. Why: docs/opentofu-only.md
}
