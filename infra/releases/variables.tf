variable "chart" {
  description = "The folder of charts/gpu-dev-server."
  type        = string
}

variable "chart_values" {
  description = "Values of the chart, as YAML; later ones override earlier ones."
  type        = list(string)
}

variable "grafana_port" {
  description = "The NodePort of Grafana."
  type        = number
}

variable "efa" {
  description = "Whether there are machines with AWS's EFA (label gpu-dev/efa)."
  type        = bool
  default     = false
}

variable "gpu_operator" {
  description = "Whether the machines need NVIDIA's operator: they do on EKS; GKE has its own driver."
  type        = bool
  default     = true
}
