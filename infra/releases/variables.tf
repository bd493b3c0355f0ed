variable "chart" {
  description = "The folder of charts/gpu-dev-server."
  type        = string
}

variable "chart_values" {
  description = "Its values, as YAML; the last is the strongest."
  type        = list(string)
}

variable "grafana_port" {
  description = "The port of the machines where Grafana is."
  type        = number
}

variable "efa" {
  description = "Whether there are machines with AWS's EFA, by the label gpu-dev/efa."
  type        = bool
  default     = false
}

variable "gpu_operator" {
  description = "Whether the machines need NVIDIA's operator: EKS does, GKE brings its own."
  type        = bool
  default     = true
}
