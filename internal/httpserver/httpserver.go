// SPDX-License-Identifier: Apache-2.0

package httpserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"time"
)

// The limits of a server.
const (
	// MaxConns is how many connections are open at a time. See limited for others.
	MaxConns = 64
	// maxHeader and maxBody are the largest header and body of a request in bytes.
	maxHeader = 16 << 10
	maxBody   = 64 << 10
	// A connection ends if the header of a request, the request, or its answer takes longer,
	// or if the next request does not come.
	headerTime = 5 * time.Second
	readTime   = 10 * time.Second
	writeTime  = 30 * time.Second
	idleTime   = 2 * time.Minute
	// endTime is how long requests may take that are being answered when the server ends.
	endTime = time.Second
)

// ParseAddr returns the address to listen on: HOST:PORT, where a missing host means
// 127.0.0.1, so that an address for everyone is always written out (0.0.0.0:PORT or
// [::]:PORT). The error matches os.ErrInvalid and says what is wrong.
func ParseAddr(s string) (string, error) {
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return "", fmt.Errorf("%q is not an address such as 127.0.0.1:9791: %w", s, os.ErrInvalid)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return "", fmt.Errorf("%q: the port must be a number of 0 to 65535: %w", s, os.ErrInvalid)
	}
	if host == "" {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port), nil
}

// Listen listens on an address of [ParseAddr]. The error says what to do if the address
// belongs to another process or to no netdev.
func Listen(ctx context.Context, addr string) (net.Listener, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", addr, cause(err))
	}
	return l, nil
}

// cause returns the error of the system call, without the address that net repeats.
func cause(err error) error {
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return op.Err
	}
	return err
}

// Serve answers requests with the handlers, by their patterns (http.ServeMux), until ctx
// ends. It closes l, lets requests that are being answered end, for a second at most, and
// returns nil. Another error is one of accepting connections.
func Serve(ctx context.Context, l net.Listener, handlers map[string]http.Handler, log *slog.Logger) error {
	return serve(ctx, l, handlers, log, times{headerTime, endTime}, sourceOf)
}

// times are limits for which a test would wait, or which it would miss on a busy machine.
type times struct{ header, end time.Duration }

func serve(ctx context.Context, l net.Listener, handlers map[string]http.Handler, log *slog.Logger, limits times, who func(net.Conn) source) error {
	mux := http.NewServeMux()
	for pattern, h := range handlers {
		mux.Handle(pattern, h)
	}
	limited := limit(l, who)
	s := &http.Server{
		Handler:           http.MaxBytesHandler(limited.asked(inTurn(onlyOwnName(l.Addr(), mux))), maxBody),
		MaxHeaderBytes:    maxHeader,
		ReadHeaderTimeout: limits.header, ReadTimeout: readTime, WriteTimeout: writeTime, IdleTimeout: idleTime,
		ErrorLog:    slog.NewLogLogger(log.Handler(), slog.LevelWarn),
		BaseContext: func(net.Listener) context.Context { return ctx },
		ConnContext: limited.context, ConnState: limited.state,
	}
	ended := make(chan struct{})
	// No guard: it only calls the server.
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		// The end of ctx has just been seen, so the requests get a time of their own.
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), limits.end)
		defer cancel()
		if s.Shutdown(last) != nil {
			_ = s.Close() // a client that does not take its answer
		}
	})
	err := s.Serve(limited)
	if stop() {
		return errors.Join(fmt.Errorf("accept connections on %s: %w", l.Addr(), err), s.Close())
	}
	<-ended
	return nil
}

// onlyOwnName refuses requests for the name of another host, if the server listens on a
// loopback address. An address in place of a name cannot be one that a name was made to mean.
func onlyOwnName(at net.Addr, h http.Handler) http.Handler {
	a, ok := at.(*net.TCPAddr)
	if !ok || !a.IP.IsLoopback() {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isOwnName(r.Host) {
			http.Error(w, "this server answers only requests for localhost or for its address", http.StatusMisdirectedRequest)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// isOwnName reports whether the value of a Host field, with or without a port, is an address
// or localhost. HTTP/1.0 requests may have none.
func isOwnName(hostport string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = hostport
	}
	if n := len(host); n > 1 && host[0] == '[' && host[n-1] == ']' {
		host = host[1 : n-1]
	}
	_, err = netip.ParseAddr(host)
	return err == nil || host == "localhost" || hostport == ""
}
