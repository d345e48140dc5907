{{/* Names: NAME of the release; NAME-web and so on of its parts. */}}
{{- define "flexmarl.name" -}}
{{- if contains "flexmarl" .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-flexmarl" .Release.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "flexmarl.secret" -}}
{{- .Values.secret.existing | default (include "flexmarl.name" .) }}
{{- end }}

{{- define "flexmarl.claim" -}}
{{- .Values.home.existingClaim | default (printf "%s-home" (include "flexmarl.name" .)) }}
{{- end }}

{{- define "flexmarl.account" -}}
{{- .Values.serviceAccount.name | default (include "flexmarl.name" .) }}
{{- end }}

{{- define "flexmarl.labels" -}}
app.kubernetes.io/name: flexmarl
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{/* Labels that find the pods of a part: dict "root" $ "part" NAME. */}}
{{- define "flexmarl.selector" -}}
app.kubernetes.io/name: flexmarl
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end }}

{{/* What every pod has in common. Service links are off: variables of a service named flexmarl are read as settings. */}}
{{- define "flexmarl.pod" -}}
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: {{ .Values.runAsUser }}
  runAsGroup: {{ .Values.runAsGroup }}
  fsGroup: {{ .Values.runAsGroup }}
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
- name: {{ . }}
{{- end }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* What every container has in common; its processes are started by the entry point of the image. */}}
{{- define "flexmarl.container" -}}
image: {{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
terminationMessagePolicy: FallbackToLogsOnError
envFrom:
- secretRef: {name: {{ include "flexmarl.secret" . }}}
{{- end }}

{{/* Settings of all processes; those of the Secret come beside them. */}}
{{- define "flexmarl.settings" -}}
{{- $web := printf "%s-web" (include "flexmarl.name" .) -}}
{{- $names := concat (list .Values.ingress.host) .Values.allowedHosts (list $web (printf "%s.%s" $web .Release.Namespace) (printf "%s.%s.svc" $web .Release.Namespace) "localhost") -}}
- {name: FLEXMARL_ALLOWED_HOSTS, value: {{ join "," (compact $names) | quote }}}
- {name: FLEXMARL_CONTROL_URL, value: {{ printf "http://%s.%s.svc:8000" $web .Release.Namespace | quote }}}
{{- with .Values.ingress.host }}
- {name: FLEXMARL_TRUSTED_ORIGINS, value: {{ printf "https://%s" . | quote }}}
{{- end }}
{{- with .Values.trustedProxies }}
- {name: FLEXMARL_TRUSTED_PROXIES, value: {{ join "," . | quote }}}
{{- end }}
{{- range $name, $value := .Values.settings }}
- {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- end }}

{{/* Where a process of a host is, and what it shares with the installation; NODE is the name of the pod. */}}
{{- define "flexmarl.hostSettings" -}}
- {name: FLEXMARL_NODE, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
- {name: FLEXMARL_CHILD_HOST, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
- {name: FLEXMARL_LOG_DIR, value: /var/lib/flexmarl/logs}
{{- end }}

{{- define "flexmarl.sharedMounts" -}}
- {name: tmp, mountPath: /tmp}
{{- range list "state" "payloads" "checkpoints" }}
- {name: home, mountPath: /var/lib/flexmarl/{{ . }}, subPath: {{ . }}}
{{- end }}
{{- end }}

{{/* Makes the folders of a host before they are mounted: by the kubelet they would belong to root. */}}
{{- define "flexmarl.folders" -}}
- name: folders
  {{- include "flexmarl.container" . | nindent 2 }}
  env:
  - {name: FLEXMARL_NODE, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
  args: [sh, -c, 'cd /claim && mkdir -p "nodes/$FLEXMARL_NODE/logs" state payloads checkpoints']
  resources: {requests: {cpu: 10m, memory: 16Mi}, limits: {memory: 64Mi}}
  volumeMounts:
  - {name: home, mountPath: /claim}
{{- end }}

{{- define "flexmarl.volumes" -}}
- {name: tmp, emptyDir: {}}
- {name: home, persistentVolumeClaim: {claimName: {{ include "flexmarl.claim" . }}}}
{{- end }}

{{/* Changes with the addresses of a Secret that the chart makes, so that pods start anew with them. */}}
{{- define "flexmarl.annotations" -}}
flexmarl/addresses: {{ printf "%s %s" .Values.secret.databaseUrl .Values.secret.redisUrl | sha256sum | trunc 16 | quote }}
{{- end }}
