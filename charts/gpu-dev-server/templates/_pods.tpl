{{/* Shared parts of all pods of the control plane. */}}

{{/* The `restricted` level of Pod Security; only mounts are writable. */}}
{{- define "gpu-dev.container-security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "gpu-dev.pod-security" -}}
runAsNonRoot: true
runAsUser: {{ .uid }}
runAsGroup: {{ .uid }}
fsGroup: {{ .uid }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{/* Start of a pod's spec: (dict "root" $ "app" APP "values" .Values.apiService "uid" 65532 "token" false). */}}
{{- define "gpu-dev.pod-basics" -}}
automountServiceAccountToken: {{ .token }}
enableServiceLinks: false
securityContext:
  {{- include "gpu-dev.pod-security" . | nindent 2 }}
{{- if .root.Values.priorityClasses.create }}
priorityClassName: {{ .root.Values.global.prefix }}-{{ .priority | default "controlplane" }}
{{- end }}
{{- with .root.Values.global.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Spreads replicas of one service over nodes, if possible. */}}
{{- define "gpu-dev.spread" -}}
topologySpreadConstraints:
  {{- range $key := list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
  - topologyKey: {{ $key }}
    maxSkew: 1
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "gpu-dev.selector" $ | nindent 8 }}
  {{- end }}
{{- end }}

{{/* The services' settings. Secret keys are listed one by one, so that others in the Secret are not exposed. `role` (API,
PROCESSOR or RECONCILER): its database role; without one, the database's owner. */}}
{{- define "gpu-dev.settings-env" -}}
envFrom:
  - configMapRef:
      name: gpu-dev-settings
  {{- with .root.Values.settingsSecret }}
  - secretRef:
      name: {{ . }}
  {{- end }}
env:
  # The only writable folder.
  - name: HOME
    value: /tmp
  {{- $own := and (not (empty .role)) (eq (include "gpu-dev.has-roles" .root) "yes") }}
  {{- if $own }}
  - name: POSTGRES_USER
    value: gpudev_{{ lower .role }}
  {{- end }}
  - name: POSTGRES_PASSWORD
    valueFrom:
      secretKeyRef:
        name: {{ include "gpu-dev.database-secret" .root }}
        key: {{ $own | ternary (printf "%s_PASSWORD" .role) "POSTGRES_PASSWORD" }}
{{- end }}

{{/* A container of the server image: (dict "root" $ "app" APP "values" V "args" (list "api")). */}}
{{- define "gpu-dev.server-container" -}}
name: {{ .app }}
image: {{ include "gpu-dev.server-image" (dict "root" .root "image" (.values.image | default dict)) }}
imagePullPolicy: {{ include "gpu-dev.pull-policy" (dict "root" .root "image" (.values.image | default dict)) }}
command: [gpu-dev-server]
args: {{ toJson .args }}
securityContext:
  {{- include "gpu-dev.container-security" . | nindent 2 }}
{{ include "gpu-dev.settings-env" . }}
  {{- with .values.resources }}
resources:
  {{- toYaml . | nindent 2 }}
  {{- end }}
volumeMounts:
  - name: tmp
    mountPath: /tmp
{{- end }}

{{- define "gpu-dev.tmp-volume" -}}
- name: tmp
  emptyDir:
    sizeLimit: 256Mi
{{- end }}

{{/* Restarts pods when their settings or the password change. */}}
{{- define "gpu-dev.pod-annotations" -}}
checksum/settings: {{ include "gpu-dev.settings" .root | sha256sum }}
{{- if not .root.Values.postgres.auth.existingSecret }}
checksum/credentials: {{ include "gpu-dev.credentials" .root | sha256sum }}
{{- end }}
{{- with .values.podAnnotations }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* A service account. Only pods that use the Kubernetes API mount its token. */}}
{{- define "gpu-dev.service-account" -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  {{- include "gpu-dev.metadata" . | nindent 2 }}
  {{- with (.values.serviceAccount | default dict).annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
automountServiceAccountToken: false
{{- end }}
