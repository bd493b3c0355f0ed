# The state of ../ for teams: an encrypted bucket with all versions, locked by a file beside the state. Apply it once, first;
# its own state is small and can be imported again.
variable "aws_region" {
  type    = string
  default = "us-west-1"
}

variable "prefix" {
  type    = string
  default = "pytorch-gpu-dev"
}

data "aws_caller_identity" "current" {}

resource "aws_kms_key" "state" {
  description             = "GPU dev servers: state of OpenTofu"
  enable_key_rotation     = true
  deletion_window_in_days = 30
}

resource "aws_s3_bucket" "state" {
  bucket = "${var.prefix}-tofu-state-${data.aws_caller_identity.current.account_id}-${var.aws_region}"

  lifecycle {
    prevent_destroy = true
  }
}

resource "aws_s3_bucket_versioning" "state" {
  bucket = aws_s3_bucket.state.id

  versioning_configuration {
    status = "Enabled"
  }
}

resource "aws_s3_bucket_server_side_encryption_configuration" "state" {
  bucket = aws_s3_bucket.state.id

  rule {
    bucket_key_enabled = true
    apply_server_side_encryption_by_default {
      sse_algorithm     = "aws:kms"
      kms_master_key_id = aws_kms_key.state.arn
    }
  }
}

resource "aws_s3_bucket_public_access_block" "state" {
  bucket                  = aws_s3_bucket.state.id
  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

output "backend" {
  description = "tofu -chdir=state output -raw backend >backend.tf, then tofu init -migrate-state"
  value       = <<-END
    terraform {
      backend "s3" {
        bucket       = "${aws_s3_bucket.state.bucket}"
        key          = "gpu-dev.tfstate"
        region       = "${var.aws_region}"
        kms_key_id   = "${aws_kms_key.state.arn}"
        encrypt      = true
        use_lockfile = true
      }
    }
  END
}
