# Production: tofu apply -var-file=prod.tfvars
environment = "production"
aws_region  = "us-east-2"

# Every type there is, so that each has its group. Capacity of the larger ones is bought beforehand: put the id of the
# reservation and its zone here, then raise the count.
gpu_groups = {
  t4   = { count = 0 }
  l4   = { count = 0 }
  a100 = { count = 2, efa = true }
  h100 = { count = 0, efa = true }
  h200 = { count = 0, efa = true }
  b200 = { count = 0, efa = true }
}
