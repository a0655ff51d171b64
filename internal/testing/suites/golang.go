// SPDX-License-Identifier: Apache-2.0

package suites

import (
	"fmt"
	"path"
	"regexp"
	"strings"
	"time"
)

// goJob is a package whose test program is a file of the build, which runs in the folder of the package.
func goJob(name, file, dir string, limit time.Duration) Job {
	return Job{
		Name: name, Limit: limit, Parse: golang, Dir: dir,
		Argv: []string{"$SOURCE/" + file, "-test.v=test2json", "-test.short", "-test.timeout=${TIMEOUT}s"},
		Only: func(tests []string) []string {
			top := map[string]bool{}
			var names []string
			for _, t := range tests {
				t, _, _ = strings.Cut(t, "/")
				if !top[t] {
					top[t] = true
					names = append(names, regexp.QuoteMeta(t))
				}
			}
			return []string{"-test.run", "^(" + strings.Join(names, "|") + ")$"}
		},
	}
}

// goNet has packages of the standard library.
func goNet() Suite {
	s := Suite{Name: "go", Version: "go version"}
	for _, p := range []string{"net", "crypto/tls", "net/http", "net/http/httptest", "net/http/httputil", "net/rpc", "net/textproto", "net/smtp"} {
		file := strings.ReplaceAll(p, "/", "_") + ".test"
		s.Build += fmt.Sprintf("go test -c -o %s %s\n", file, p)
		s.Jobs = append(s.Jobs, goJob(p, file, "$GOROOT/src/"+p, 6*time.Minute))
	}
	return s
}

// goModules has packages of other modules: HTTP/2, websockets and gRPC.
func goModules() Suite {
	s := Suite{Name: "gomodules"}
	for _, m := range []struct{ module, version, packages string }{
		{"golang.org/x/net", "v0.62.0", "http2 websocket"},
		{"github.com/gorilla/websocket", "v1.5.3", "."},
		{"google.golang.org/grpc", "v1.85.0", "test internal/transport"},
	} {
		folder := strings.ReplaceAll(m.module, "/", "_")
		s.Build += fmt.Sprintf("cp -r \"$(go mod download -json %s@%s | sed -n 's/.*\"Dir\": \"\\(.*\\)\".*/\\1/p')\" %s\nchmod -R u+w %s\n", m.module, m.version, folder, folder)
		s.Version += fmt.Sprintf("echo %s %s; ", m.module, m.version)
		for _, p := range strings.Fields(m.packages) {
			name := path.Join(m.module, p)
			file := strings.ReplaceAll(name, "/", "_") + ".test"
			s.Build += fmt.Sprintf("(cd %s && go test -c -o \"$OLDPWD/%s\" ./%s)\n", folder, file, p)
			s.Jobs = append(s.Jobs, goJob(name, file, path.Join("$SOURCE", folder, p), 6*time.Minute))
		}
	}
	s.Version = "(" + strings.TrimSuffix(s.Version, "; ") + ") | paste -sd,"
	return s
}
