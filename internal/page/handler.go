// SPDX-License-Identifier: Apache-2.0

package page

import (
	"context"
	"embed"
	"encoding/json"
	"fmt"
	"net/http"
	"path"
	"strings"
	"time"

	"smcr/internal/cmdutil"
	"smcr/internal/printable"
	"smcr/internal/topology"
	"smcr/nl"
)

// A Config says what the page shows.
type Config struct {
	// Dial connects to the stacks. It is called for each listing, so the page finds a stack
	// again that was restarted. The handler closes what Dial returns. For a stack of this
	// process, see [Stack].
	Dial func(context.Context) (nl.Multi, error)
	// NetDev returns the name of a network device by its index. Nil: [cmdutil.NetDev].
	NetDev func(uint32) string
	// User returns the name of a user by its number, or "". Nil: as in /etc/passwd.
	User func(uint32) string
	// Address is where the caller listens, as the user wrote it: HOST:PORT or HOST. Requests
	// must name this host, a loopback address or name, or the address at which they arrive.
	Address string
	// Version is that of the program. A page that was loaded from another version reloads.
	Version string
}

// Stack returns a function for [Config.Dial] that always finds the same stack. The page does
// not close it.
func Stack(name string, c nl.Control) func(context.Context) (nl.Multi, error) {
	return func(context.Context) (nl.Multi, error) { return nl.Multi{{Name: name, Control: open{c}}}, nil }
}

// open is a stack that Close does not close.
type open struct{ nl.Control }

func (open) Close() error { return nil }

// site has the files of the page.
//
//go:embed site
var site embed.FS

// types are the media types of the files of the page.
var types = map[string]string{
	".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml",
}

// refresh is how often the page asks for a new state, unless listings take long.
const refresh = 2 * time.Second

// Bounds of what requests can make the handler do.
const (
	maxRequests = 16              // that are answered at the same time; others wait
	maxWait     = 2 * time.Second // for a turn
	maxFilter   = 100             // bytes of a filter
)

// handler is the page.
type handler struct {
	cfg   Config
	lists *lister
	turns chan struct{}
	every time.Duration // after which a viewer asks again
}

// New returns the handler of the page. It serves GET and HEAD for /, the files that / needs,
// /state.json and /topology.svg. To be mounted at the root of a ServeMux:
//
//	mux.Handle("/", page.New(page.Config{Dial: page.Stack("user", control), Address: address}))
//
// The answers forbid the browser to load anything from elsewhere, and to show the page within
// another one.
func New(c Config) http.Handler {
	if c.NetDev == nil {
		c.NetDev = cmdutil.NetDev
	}
	if c.User == nil {
		c.User = (&users{file: passwd}).name
	}
	return &handler{cfg: c, lists: newLister(c.Dial, c.NetDev), turns: make(chan struct{}, maxRequests), every: refresh}
}

// policy is the content security policy of all answers.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// ServeHTTP implements [http.Handler].
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	head := w.Header()
	head.Set("Content-Security-Policy", policy)
	head.Set("X-Content-Type-Options", "nosniff")
	head.Set("X-Frame-Options", "DENY")
	head.Set("Referrer-Policy", "no-referrer")
	head.Set("Cross-Origin-Opener-Policy", "same-origin")
	head.Set("Cross-Origin-Resource-Policy", "same-origin")
	head.Set("Cache-Control", "no-store")
	if !h.mayAsk(r) {
		http.Error(w, "this page answers only to the names of the address where it listens: "+
			"open it as http://localhost:PORT/ or with that address", http.StatusForbidden)
		return
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		head.Set("Allow", "GET, HEAD")
		http.Error(w, "this page can only be read", http.StatusMethodNotAllowed)
		return
	}
	switch r.URL.Path {
	case "/":
		h.file(w, "index.html")
	case "/page.css", "/page.js", "/icon.svg":
		h.file(w, path.Base(r.URL.Path))
	case "/state.json", "/topology.svg":
		h.state(w, r)
	default:
		http.NotFound(w, r)
	}
}

func (h *handler) file(w http.ResponseWriter, name string) {
	b, err := site.ReadFile("site/" + name)
	if err != nil { // cannot happen: the file is part of the program
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", types[path.Ext(name)])
	_, _ = w.Write(b) // the viewer has gone
}

// state answers with the newest listing.
func (h *handler) state(w http.ResponseWriter, r *http.Request) {
	if !h.turn(r.Context()) {
		w.Header().Set("Retry-After", "2")
		fail(w, http.StatusServiceUnavailable, "too many viewers ask at the same time")
		return
	}
	defer func() { <-h.turns }()
	q := r.URL.Query()
	filter := q.Get("filter")
	if len(filter) > maxFilter {
		fail(w, http.StatusBadRequest, fmt.Sprintf("the filter has more than %d bytes", maxFilter))
		return
	}
	layout := topology.Wide
	if q.Get("layout") == "narrow" {
		layout = topology.Narrow
	}
	l, err := h.lists.get(r.Context())
	if err != nil {
		fail(w, http.StatusServiceUnavailable, cmdutil.Message(err))
		return
	}
	if r.URL.Path == "/topology.svg" {
		w.Header().Set("Content-Type", types[".svg"])
		_, _ = w.Write(topology.SVG(l.stacks, layout, topology.DefaultGroups))
		return
	}
	s := newState(l, &h.cfg, layout, filter)
	// There is nothing new before the listing is made again.
	s.Every = max(h.every, time.Until(l.until)).Milliseconds()
	send(w, http.StatusOK, s)
}

// turn waits until the request may be answered. If it returns true, the caller must take a
// value out of h.turns at the end.
func (h *handler) turn(ctx context.Context) bool {
	select {
	case h.turns <- struct{}{}:
		return true
	default:
	}
	timer := time.NewTimer(maxWait)
	defer timer.Stop()
	select {
	case h.turns <- struct{}{}:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}

// fail sends an error as JSON.
func fail(w http.ResponseWriter, status int, text string) {
	send(w, status, struct {
		Error string `json:"error"`
	}{printable.Line(strings.TrimSpace(text))})
}

func send(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the viewer has gone
}
