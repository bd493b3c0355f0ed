# All variables. The defaults are the test environment; prod.tfvars is production.

variable "environment" {
  description = "A name for tags, for people to read."
  type        = string
  default     = "test"
}

variable "prefix" {
  description = "Prefix of all names. Node groups are named PREFIX-gpu-nodes-TYPE, by which the reconcilers find them."
  type        = string
  default     = "pytorch-gpu-dev"

  validation {
    # The longest name with this prefix is a target group's, which is limited to 32 characters.
    condition     = can(regex("^[a-z][a-z0-9-]{1,20}[a-z0-9]$", var.prefix))
    error_message = "Invalid prefix: expected 3 to 22 lower-case letters, digits and dashes."
  }
}

variable "aws_region" {
  description = "The AWS region."
  type        = string
  default     = "us-west-1"

  validation {
    condition     = can(regex("^[a-z]{2}(-[a-z]+)+-[0-9]$", var.aws_region))
    error_message = "Invalid region (expected e.g. us-east-2)."
  }
}

variable "primary_zone" {
  description = "The zone of the control plane, and the default zone of GPU groups. Empty: the first of the region. Do not change it later: disks cannot leave their zone."
  type        = string
  default     = ""
}

variable "vpc_cidr" {
  description = "The private network. Each zone's subnet takes a sixteenth of it."
  type        = string
  default     = "10.0.0.0/16"

  validation {
    condition     = can(cidrhost(var.vpc_cidr, 1)) && tonumber(split("/", var.vpc_cidr)[1]) <= 20
    error_message = "Invalid network (expected e.g. 10.0.0.0/16, at least a /20)."
  }
}

variable "kubernetes_version" {
  description = <<-END
    The version of EKS. A version has 14 months of standard support and 12 months of extended support, which costs six times
    as much. 1.35 is in standard support from January 2026 to 27 March 2027 by AWS's calendar
    (https://docs.aws.amazon.com/eks/latest/userguide/kubernetes-versions.html). Before the first apply, check the calendar
    and the offered versions (aws eks describe-cluster-versions). Raise it by one at a time; it cannot be lowered.
  END
  type        = string
  default     = "1.35"

  validation {
    condition     = can(regex("^1\\.[0-9]{2}$", var.kubernetes_version))
    error_message = "Invalid version (expected e.g. 1.35)."
  }
}

variable "cluster_name" {
  description = "The cluster's name. Empty: PREFIX-cluster, by default pytorch-gpu-dev-cluster. It cannot be changed later."
  type        = string
  default     = ""

  validation {
    condition     = var.cluster_name == "" || can(regex("^[A-Za-z0-9][A-Za-z0-9_-]{0,99}$", var.cluster_name))
    error_message = "Invalid cluster name: expected up to 100 letters, digits, dashes and underscores, beginning with a letter or digit."
  }
}

variable "cluster_admins" {
  description = "ARNs of IAM roles or users that administer the cluster, in addition to its creator."
  type        = set(string)
  default     = []
}

variable "kubernetes_api_cidrs" {
  description = "Networks that can reach the Kubernetes API."
  type        = set(string)
  default     = ["0.0.0.0/0"]
}

variable "instance_type" {
  description = "The instance type of the single group of GPU machines, if gpu_groups is empty."
  type        = string
  default     = "g4dn.12xlarge"
}

variable "gpu_instance_count" {
  description = "The number of machines in that group."
  type        = number
  default     = 2

  validation {
    condition     = var.gpu_instance_count >= 0 && floor(var.gpu_instance_count) == var.gpu_instance_count
    error_message = "Invalid number of machines (expected a whole number of 0 or more)."
  }
}

variable "gpu_groups" {
  description = <<-END
    Groups of GPU machines by name: a GPU type (h100), or one with your own suffix (h100-reserved). Groups are
    independent: adding, removing or reordering one changes no other.
    instance_type            empty: the type's default
    count                    machines; min = max = desired
    zone                     empty: primary_zone
    capacity_reservation_id  of an On-Demand Capacity Reservation or a Capacity Block
    capacity_block           true: the reservation is a Capacity Block
    spot                     true: spot machines
    efa                      true: one EFA interface and a placement group of its own; who has a whole machine has the device
    placement                true: a placement group without EFA
    Check the spelling in the plan: OpenTofu passes over names that it does not know here.
  END
  type = map(object({
    instance_type           = optional(string, "")
    count                   = number
    zone                    = optional(string, "")
    capacity_reservation_id = optional(string, "")
    capacity_block          = optional(bool, false)
    spot                    = optional(bool, false)
    efa                     = optional(bool, false)
    placement               = optional(bool, false)
  }))
  default = {}

  validation {
    # It is also a label of the nodes: with a longer value no machine could join the cluster.
    condition     = alltrue([for name in keys(var.gpu_groups) : can(regex("^[a-z0-9]([a-z0-9-]{0,48}[a-z0-9])?$", name))])
    error_message = "Invalid group name: expected up to 50 lower-case letters, digits and dashes."
  }
  validation {
    condition     = alltrue([for group in values(var.gpu_groups) : group.count >= 0 && floor(group.count) == group.count])
    error_message = "Invalid number of machines in a group (expected a whole number of 0 or more)."
  }
  validation {
    condition     = alltrue([for group in values(var.gpu_groups) : !(group.spot && group.capacity_reservation_id != "")])
    error_message = "A group cannot be both spot and reserved."
  }
  validation {
    condition     = alltrue([for group in values(var.gpu_groups) : !group.capacity_block || group.capacity_reservation_id != ""])
    error_message = "A Capacity Block needs its capacity_reservation_id."
  }
}

variable "gpu_node_disk_gb" {
  description = "The size of a GPU machine's root volume, which holds images and scratch space."
  type        = number
  default     = 500

  validation {
    condition     = var.gpu_node_disk_gb >= 50
    error_message = "A PyTorch image alone takes 20 GB: use 50 or more."
  }
}

variable "gpu_node_image" {
  description = "An AMI with nodeadm and NVIDIA's driver. Empty: the one AWS recommends for this version of EKS."
  type        = string
  default     = ""
}

variable "cpu_instance_type" {
  description = "The machine type of the control plane."
  type        = string
  default     = "m7i.xlarge"
}

variable "cpu_node_image" {
  description = "An AMI with nodeadm. Empty: the one AWS recommends for this version of EKS."
  type        = string
  default     = ""
}

variable "ssh_cidrs" {
  description = "Networks that can reach dev servers by SSH at the nodes' addresses. Empty: only through the API."
  type        = set(string)
  default     = ["0.0.0.0/0"]
}

variable "grafana_cidrs" {
  description = "Networks that can reach Grafana (NodePort 30080). Empty: only with kubectl port-forward."
  type        = set(string)
  default     = []
}

variable "loadbalancer_cidrs" {
  description = "Networks that can reach the API's load balancer directly, by unencrypted HTTP: for debugging only."
  type        = set(string)
  default     = []
}

variable "api_domain" {
  description = "Your own domain name for the API. Empty: CloudFront's."
  type        = string
  default     = ""
}

variable "api_certificate_arn" {
  description = "The certificate for that name, in us-east-1."
  type        = string
  default     = ""
}

variable "aws_login_accounts" {
  description = "AWS account ids whose users may log in with AWS. Empty: this account."
  type        = set(string)
  default     = []

  validation {
    condition     = alltrue([for account in var.aws_login_accounts : can(regex("^[0-9]{12}$", account))])
    error_message = "Invalid account id (expected 12 digits)."
  }
}

variable "aws_login_roles" {
  description = "The roles that may log in."
  type        = set(string)
  default     = ["SSOCloudDevGpuReservation"]
}

variable "pull_through_caches" {
  description = "Whether to create ECR's pull-through caches. An account can have them once per region: false if another environment has created them."
  type        = bool
  default     = true
}

variable "dockerhub_credential_arn" {
  description = "A secret named ecr-pullthroughcache/… with a Docker Hub account. Without it, ECR does not cache Docker Hub."
  type        = string
  default     = ""
}

variable "log_retention_days" {
  type    = number
  default = 30
}

variable "chart_values" {
  description = "YAML with additional values of charts/gpu-dev-server; they override those derived here."
  type        = string
  default     = ""

  validation {
    condition     = var.chart_values == "" || can(keys(yamldecode(var.chart_values)))
    error_message = "Invalid chart values (expected a YAML mapping)."
  }
}
