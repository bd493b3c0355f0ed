{{/* Labels, names, images. */}}

{{- define "gpu-dev.labels" -}}
app.kubernetes.io/name: gpu-dev-server
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: gpu-dev
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* Selector labels, which never change within a release: (dict "root" $ "app" "api-service"). */}}
{{- define "gpu-dev.selector" -}}
app: {{ .app }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- end }}

{{- define "gpu-dev.app-labels" -}}
app: {{ .app }}
app.kubernetes.io/component: {{ .app }}
{{ include "gpu-dev.labels" .root }}
{{- end }}

{{/* Metadata of namespaced objects: (dict "root" $ "app" APP "name" NAME). */}}
{{- define "gpu-dev.metadata" -}}
name: {{ .name | default .app }}
namespace: {{ .root.Values.namespaces.controlplane }}
labels:
  {{- include "gpu-dev.app-labels" . | nindent 2 }}
{{- end }}

{{/* A service's image, with defaults from the shared one: (dict "root" $ "image" .Values.apiService.image). */}}
{{- define "gpu-dev.server-image" -}}
{{- $shared := .root.Values.global.image -}}
{{- $is_shared := empty .image.repository -}}
{{- $tag := .image.tag | default ($is_shared | ternary $shared.tag "") | default .root.Chart.AppVersion -}}
{{- $digest := .image.digest | default (and $is_shared (empty .image.tag) | ternary $shared.digest "") -}}
{{- include "gpu-dev.image" (dict "repository" (.image.repository | default $shared.repository) "tag" $tag "digest" $digest) -}}
{{- end }}

{{- define "gpu-dev.image" -}}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag }}{{ end -}}
{{- end }}

{{- define "gpu-dev.pull-policy" -}}
{{ .image.pullPolicy | default .root.Values.global.image.pullPolicy }}
{{- end }}

{{/* Whether an object exists that is not part of this release; it is then used unchanged: (dict "root" $ "found" OBJECT) */}}
{{- define "gpu-dev.is-foreign" -}}
{{- if .found -}}
{{- $notes := .found.metadata.annotations | default dict -}}
{{- $is_ours := and (eq (index $notes "meta.helm.sh/release-name" | default "") .root.Release.Name) (eq (index $notes "meta.helm.sh/release-namespace" | default "") .root.Release.Namespace) -}}
{{- if not $is_ours }}foreign{{ end -}}
{{- end -}}
{{- end }}

{{- define "gpu-dev.database-host" -}}
{{- if .Values.postgres.enabled -}}
postgres-primary
{{- else -}}
{{ .Values.postgres.external.host }}
{{- end -}}
{{- end }}

{{- define "gpu-dev.database-port" -}}
{{ .Values.postgres.enabled | ternary 5432 .Values.postgres.external.port | int }}
{{- end }}

{{- define "gpu-dev.database-secret" -}}
{{ .Values.postgres.auth.existingSecret | default "postgres-credentials" }}
{{- end }}

{{- define "gpu-dev.has-efs" -}}
{{- if and (eq .Values.cloudProvider.name "aws") .Values.cloudProvider.aws.efsFileSystemId (not .Values.devServers.sharedStorageClass) }}yes{{ end -}}
{{- end }}

{{/*
A claim: (dict "root" $ "app" APP "name" NAME "storage" STORAGE). Without a class it has the cluster's default. The class of
an existing claim cannot change, so it is kept, even if an upgrade comes without the cloud's values file.
*/}}
{{- define "gpu-dev.claim" -}}
{{- $there := lookup "v1" "PersistentVolumeClaim" .root.Values.namespaces.controlplane .name }}
{{- $class := .storage.class | default .root.Values.storage.class }}
{{- if $there }}
{{- $class = $there.spec.storageClassName | default "" }}
{{- end }}
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  {{- include "gpu-dev.metadata" . | nindent 2 }}
  annotations:
    # Users' data outlives the release.
    helm.sh/resource-policy: keep
spec:
  accessModes: [ReadWriteOnce]
  {{- with $class }}
  storageClassName: {{ . }}
  {{- end }}
  resources:
    requests:
      storage: {{ .storage.size }}
{{- end }}
