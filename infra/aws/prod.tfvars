# Production: tofu apply -var-file=prod.tfvars
environment = "production"
aws_region  = "us-east-2"

# One group for every type. Capacity of the larger types is bought in advance: set the id and zone of the reservation here,
# then raise the count.
gpu_groups = {
  t4   = { count = 0 }
  l4   = { count = 0 }
  a100 = { count = 2, efa = true }
  h100 = { count = 0, efa = true }
  h200 = { count = 0, efa = true }
  b200 = { count = 0, efa = true }
}
