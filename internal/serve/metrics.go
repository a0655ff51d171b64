// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"

	"smcr/guard"
	"smcr/internal/cmdutil"
	"smcr/internal/httpserver"
	"smcr/internal/metrics"
	"smcr/internal/page"
	"smcr/internal/retry"
	"smcr/nl"
)

// A webServer is the HTTP server of the stack (--metrics). Without an address it does nothing.
type webServer struct {
	addr     string // of httpserver.ParseAddr
	handlers map[string]http.Handler
	log      *slog.Logger

	mu       sync.Mutex
	listener net.Listener       // not yet served
	stop     context.CancelFunc // ends what is served
	ended    chan struct{}      // closed when it has ended
}

// newWebServer returns the HTTP server of a stack: metrics for Prometheus, and a page for
// browsers.
func newWebServer(addr, version string, control nl.Control, log *slog.Logger) *webServer {
	w := &webServer{addr: addr, log: log}
	if addr != "" {
		w.handlers = map[string]http.Handler{
			"GET /metrics": metrics.Handler(scraped(control), log),
			"/":            page.New(page.Config{Dial: shown(control), Address: addr, Version: version}),
		}
	}
	return w
}

// shown returns the stacks of the page: this one, and those that have handed over to it and
// still have connections.
func shown(control nl.Control) func(context.Context) (nl.Multi, error) {
	own := page.Stack("user", control)
	return func(ctx context.Context) (nl.Multi, error) {
		m, err := own(ctx)
		if err != nil {
			return nil, err
		}
		ending, err := cmdutil.DialEnding(ctx)
		if err != nil {
			return m, nil // this stack matters most
		}
		return append(m, ending...), nil
	}
}

// scraped returns the stacks of a scrape: this one, and those that have handed over to it and
// still have connections.
func scraped(control nl.Control) metrics.Source {
	return func(ctx context.Context) []metrics.Stack {
		stacks := []metrics.Stack{metrics.Shared("user", control)}
		m, err := cmdutil.DialEnding(ctx)
		if err != nil {
			return append(stacks, metrics.Stack{Name: "ending", Err: err})
		}
		for _, b := range m {
			stacks = append(stacks, metrics.Stack{Name: b.Name, Control: b.Control})
		}
		return stacks
	}
}

// listen opens the port. Nothing is answered before serve.
func (w *webServer) listen(ctx context.Context) error {
	if w.addr == "" {
		return nil
	}
	l, err := httpserver.Listen(ctx, w.addr)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.listener = l
	return nil
}

// portWait is how long a process that has taken over waits for the port of the other one,
// which closes it a moment later.
const portWait = 5 * time.Second

// inherit opens the port after the stack that had it has handed over. The connections of
// programs matter more than metrics: without the port, the stack serves all the same.
func (w *webServer) inherit(ctx context.Context) {
	err := retry.While(func(err error) bool { return errors.Is(err, syscall.EADDRINUSE) }, portWait, func() error { return w.listen(ctx) })
	if err != nil {
		w.log.Error("there are no metrics: restart the stack, or take over again, when the address is free", "err", err)
	}
}

// serve answers requests in the background, until ctx ends or end is called.
func (w *webServer) serve(ctx context.Context) {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.listener
	if l == nil {
		return
	}
	ctx, w.stop = context.WithCancel(ctx)
	w.listener, w.ended = nil, make(chan struct{})
	w.log.Info("metrics", "url", "http://"+l.Addr().String()+"/metrics", "page", "http://"+l.Addr().String()+"/")
	ended := w.ended
	// The stack goes on without metrics if the server fails.
	go func() {
		defer close(ended)
		var err error
		if fell := (*guard.Guard)(nil).Do("the HTTP server", func() { err = httpserver.Serve(ctx, l, w.handlers, w.log) }); fell != nil {
			err = fell
		}
		if err != nil {
			w.log.Error("there are no metrics any more", "err", err)
		}
	}()
}

// end closes the port, and returns when requests have ended. A second call does nothing, and
// neither does one for a nil server.
func (w *webServer) end() {
	if w == nil {
		return
	}
	w.mu.Lock()
	l, stop, ended := w.listener, w.stop, w.ended
	w.listener, w.stop = nil, nil
	w.mu.Unlock()
	if l != nil {
		_ = l.Close()
	}
	if stop != nil {
		stop()
		<-ended
	}
}
