# Only Terraform reads this file, and stops here. OpenTofu reads versions.tofu instead.
terraform {
  required_version = "< 0.0.1" # OpenTofu only: use tofu instead of terraform. Why: docs/opentofu-only.md
}
