# Everything that can be set. The defaults are the test environment; prod.tfvars is production.

variable "environment" {
  description = "A name for tags and for people."
  type        = string
  default     = "test"
}

variable "prefix" {
  description = "Begins the names of everything. Groups of nodes are called PREFIX-gpu-nodes-TYPE: the reconcilers find them so."
  type        = string
  default     = "pytorch-gpu-dev"

  validation {
    # The longest name that begins with it is a target group's, which may have 32 characters.
    condition     = can(regex("^[a-z][a-z0-9-]{1,20}[a-z0-9]$", var.prefix))
    error_message = "The prefix must be 3 to 22 lower-case letters, digits and dashes."
  }
}

variable "aws_region" {
  description = "Where everything is."
  type        = string
  default     = "us-west-1"

  validation {
    condition     = can(regex("^[a-z]{2}(-[a-z]+)+-[0-9]$", var.aws_region))
    error_message = "The region must look like us-east-2."
  }
}

variable "primary_zone" {
  description = "The availability zone of the control plane, and of GPU groups that name no other. Empty: the first of the region. Disks cannot leave their zone, so it should stay as it is."
  type        = string
  default     = ""
}

variable "vpc_cidr" {
  description = "The private network. A subnet of each zone takes a sixteenth of it."
  type        = string
  default     = "10.0.0.0/16"

  validation {
    condition     = can(cidrhost(var.vpc_cidr, 1)) && tonumber(split("/", var.vpc_cidr)[1]) <= 20
    error_message = "The network must be like 10.0.0.0/16, and no smaller than a /20."
  }
}

variable "kubernetes_version" {
  description = <<-END
    Of EKS, which offers a version for 14 months in standard support and for 12 more in extended support, which costs six
    times as much. 1.35 is in standard support from January 2026 to 27 March 2027 by AWS's calendar
    (https://docs.aws.amazon.com/eks/latest/userguide/kubernetes-versions.html). Look there before the first apply, and at
    what is offered: aws eks describe-cluster-versions. It is raised by one at a time, and never lowered.
  END
  type        = string
  default     = "1.35"

  validation {
    condition     = can(regex("^1\\.[0-9]{2}$", var.kubernetes_version))
    error_message = "The version must look like 1.35."
  }
}

variable "cluster_name" {
  description = "Empty: PREFIX-cluster, so pytorch-gpu-dev-cluster. It cannot be changed afterwards."
  type        = string
  default     = ""

  validation {
    condition     = var.cluster_name == "" || can(regex("^[A-Za-z0-9][A-Za-z0-9_-]{0,99}$", var.cluster_name))
    error_message = "The cluster's name must be up to 100 letters, digits, dashes and underscores, and begin with one of the first two."
  }
}

variable "cluster_admins" {
  description = "ARNs of IAM roles or users that administer the cluster, beside whoever creates it."
  type        = set(string)
  default     = []
}

variable "kubernetes_api_cidrs" {
  description = "From where the API of Kubernetes is reached."
  type        = set(string)
  default     = ["0.0.0.0/0"]
}

variable "instance_type" {
  description = "Of the one group of GPU machines, where gpu_groups is empty."
  type        = string
  default     = "g4dn.12xlarge"
}

variable "gpu_instance_count" {
  description = "How many of them."
  type        = number
  default     = 2

  validation {
    condition     = var.gpu_instance_count >= 0 && floor(var.gpu_instance_count) == var.gpu_instance_count
    error_message = "The number of machines must be 0 or a positive whole number."
  }
}

variable "gpu_groups" {
  description = <<-END
    Groups of GPU machines by name: a GPU type (h100), or one with a suffix of your choice (h100-reserved). Each is made by
    itself: adding, removing or reordering groups touches no other.
    instance_type            empty: the type's own
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
    # It becomes a label of the nodes, too: with a longer one no machine would join the cluster.
    condition     = alltrue([for name in keys(var.gpu_groups) : can(regex("^[a-z0-9]([a-z0-9-]{0,48}[a-z0-9])?$", name))])
    error_message = "The name of a group must be up to 50 lower-case letters, digits and dashes."
  }
  validation {
    condition     = alltrue([for group in values(var.gpu_groups) : group.count >= 0 && floor(group.count) == group.count])
    error_message = "The number of machines of every group must be 0 or a positive whole number."
  }
  validation {
    condition     = alltrue([for group in values(var.gpu_groups) : !(group.spot && group.capacity_reservation_id != "")])
    error_message = "A group is either of spot machines or of reserved ones."
  }
  validation {
    condition     = alltrue([for group in values(var.gpu_groups) : !group.capacity_block || group.capacity_reservation_id != ""])
    error_message = "A Capacity Block needs its capacity_reservation_id."
  }
}

variable "gpu_node_disk_gb" {
  description = "The root volume of a GPU machine: images and scratch homes are kept on it."
  type        = number
  default     = 500

  validation {
    condition     = var.gpu_node_disk_gb >= 50
    error_message = "An image of PyTorch alone takes 20 GB of it: give it 50 or more."
  }
}

variable "gpu_node_image" {
  description = "An AMI with nodeadm and NVIDIA's driver. Empty: the one AWS recommends for this version of EKS."
  type        = string
  default     = ""
}

variable "cpu_instance_type" {
  description = "Of the machines of the control plane."
  type        = string
  default     = "m7i.xlarge"
}

variable "cpu_node_image" {
  description = "An AMI with nodeadm. Empty: the one AWS recommends for this version of EKS."
  type        = string
  default     = ""
}

variable "ssh_cidrs" {
  description = "From where dev servers are reached by SSH at the nodes' addresses. Empty: only through the API."
  type        = set(string)
  default     = ["0.0.0.0/0"]
}

variable "grafana_cidrs" {
  description = "From where Grafana (NodePort 30080) is reached. Empty: only with kubectl port-forward."
  type        = set(string)
  default     = []
}

variable "loadbalancer_cidrs" {
  description = "From where the API's load balancer is reached past CloudFront, by HTTP: for debugging. What is sent there can be read on the way."
  type        = set(string)
  default     = []
}

variable "api_domain" {
  description = "A name of your own for the API. Empty: CloudFront's."
  type        = string
  default     = ""
}

variable "api_certificate_arn" {
  description = "The certificate for that name, in us-east-1."
  type        = string
  default     = ""
}

variable "aws_login_accounts" {
  description = "Numbers of the AWS accounts whose people log in with AWS. Empty: this account."
  type        = set(string)
  default     = []

  validation {
    condition     = alltrue([for account in var.aws_login_accounts : can(regex("^[0-9]{12}$", account))])
    error_message = "An account is known by its number, of 12 digits."
  }
}

variable "aws_login_roles" {
  description = "The roles that may log in."
  type        = set(string)
  default     = ["SSOCloudDevGpuReservation"]
}

variable "pull_through_caches" {
  description = "Whether ECR's caches of other registries are made. An account has them once in a region: false where another environment has made them."
  type        = bool
  default     = true
}

variable "dockerhub_credential_arn" {
  description = "A secret called ecr-pullthroughcache/… with a Docker Hub account, without which AWS caches nothing from there."
  type        = string
  default     = ""
}

variable "log_retention_days" {
  type    = number
  default = 30
}

variable "chart_values" {
  description = "YAML with further values of charts/gpu-dev-server; stronger than those derived here."
  type        = string
  default     = ""

  validation {
    condition     = var.chart_values == "" || can(keys(yamldecode(var.chart_values)))
    error_message = "The chart's values must be a YAML document with names and values."
  }
}
