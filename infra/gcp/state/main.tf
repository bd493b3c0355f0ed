# The state of ../ for teams: a bucket with all versions. Google Cloud Storage has its own locks.
variable "project" {
  type = string
}

variable "region" {
  type    = string
  default = "us-central1"
}

variable "prefix" {
  type    = string
  default = "pytorch-gpu-dev"
}

resource "google_storage_bucket" "state" {
  name                        = "${var.prefix}-tofu-state-${var.project}"
  location                    = var.region
  uniform_bucket_level_access = true
  public_access_prevention    = "enforced"

  versioning {
    enabled = true
  }

  lifecycle {
    prevent_destroy = true
  }
}

output "backend" {
  description = "tofu -chdir=state output -raw backend >backend.tf, then tofu init -migrate-state"
  value       = <<-END
    terraform {
      backend "gcs" {
        bucket = "${google_storage_bucket.state.name}"
        prefix = "gpu-dev"
      }
    }
  END
}
