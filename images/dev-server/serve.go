package main

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"gpudev/devserver/internal/interior"
	"gpudev/devserver/internal/messages"
	"gpudev/devserver/internal/process"
	"gpudev/devserver/internal/runend"
	"gpudev/devserver/internal/server"
	"gpudev/devserver/internal/settling"
	"gpudev/devserver/internal/setup"
)

const (
	username = "dev"
	// Memory is the person's: rather collect a little more often than hold on to it.
	collectAtPercent = 50
)

type serveOptions struct {
	config    string
	listen    string
	port      int
	home      string
	uid       int
	grace     time.Duration
	login     time.Duration
	keepalive time.Duration
	lastWords string
}

func serve(arguments []string) error {
	options, err := parseServe(arguments)
	if err != nil {
		return err
	}
	debug.SetGCPercent(collectAtPercent)
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	// First of all: on a machine that is no dev server nothing must be changed.
	hostKey, err := readHostKey(filepath.Join(options.config, "host_key"))
	if err != nil {
		return err
	}
	mesh, meshKey, err := readMesh(options, hostKey.PublicKey())
	if err != nil {
		return err
	}
	hearAllSignals()
	children := process.NewChildren()
	wish := setup.Wish{Name: username, UID: options.uid, Home: options.home, Mesh: mesh}
	place, err := setup.Prepare(wish, log)
	if err != nil {
		return err
	}
	if place.Identity.Switches {
		go setup.KeepHosts(filepath.Join(options.config, "hosts"), log)
	}
	board := messages.NewBoard()
	serving := server.New(server.Config{
		HostKey:            hostKey,
		AuthorizedKeysPath: filepath.Join(options.config, "authorized_keys"),
		EnvironmentPath:    filepath.Join(options.config, "environment"),
		OwnVariablesPath:   filepath.Join(options.config, "own_variables"),
		GreetingPath:       filepath.Join(options.config, "greeting"),
		MeshKey:            meshKey,
		Username:           username,
		Home:               place.Home,
		RuntimeDir:         place.RuntimeDir,
		Identity:           place.Identity,
		Shell:              func() string { return setup.LoginShell(username) },
		LoginTime:          options.login,
		Keepalive:          options.keepalive,
	}, children, board, log)
	wanted, err := readJupyter(options.config)
	if err != nil {
		log.Warn("jupyter.unreadable", "error", err)
	}
	serving.Jupyter().Want(wanted)
	return serveUntilAsked(options, serving, children, board, watchRun(options, place), log)
}

// watchRun sees the end of the command that this dev server was reserved for.
func watchRun(options serveOptions, place setup.Place) runend.Watch {
	environment, _ := readOptional(filepath.Join(options.config, "environment")) // unreadable: it was for none
	return runend.Watch{
		Home:          place.Home,
		ReservationID: server.FromFile(environment, "GPU_DEV_RESERVATION_ID"),
		Identity:      place.Identity,
	}
}

func serveUntilAsked(
	options serveOptions, serving *server.Server, children *process.Children, board *messages.Board,
	run runend.Watch, log *slog.Logger,
) error {
	listener, err := server.Listen(options.listen, options.port)
	if err != nil {
		return err
	}
	if err := interior.Listen(options.port, adjuster(serving), log); err != nil {
		log.Warn("changes.not_heard", "error", err) // people get in all the same
	}
	if err := messages.Listen(options.port, board, log); err != nil {
		log.Warn("messages.not_heard", "error", err) // people get in all the same
	}
	settleIn(options, serving, log)
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, unix.SIGTERM, unix.SIGINT)
	failed := make(chan error, 1)
	go func() { failed <- serving.Serve(listener) }()
	over := make(chan runend.Report, 1)
	go func() { over <- run.Wait() }()
	log.Info("serving", "address", listener.Addr().String(), "pid", os.Getpid())
	runIsOver := false
	for ending := false; !ending; {
		select {
		case err := <-failed:
			return err
		case why := <-asked:
			log.Info("ending", "signal", why.String(), "grace", options.grace.String())
			ending = true
		case report := <-over:
			runIsOver = tellRunEnd(report, options, log)
			ending = runIsOver
		}
	}
	_ = listener.Close()
	board.Tell(messages.Message{Text: "This dev server is ending now."})
	children.EndAll(options.grace)
	time.Sleep(lastWords)
	serving.CloseConnections()
	if runIsOver {
		if err := logHome(run.Home); err != nil {
			log.Warn("home.not_listed", "error", err)
		}
	}
	log.Info("ended")
	return nil
}

// tellRunEnd: one whose end cannot be told would be taken for one that failed, so it stays.
func tellRunEnd(report runend.Report, options serveOptions, log *slog.Logger) bool {
	if err := report.Tell(options.lastWords); err != nil {
		log.Warn("run_end.not_told", "error", err)
		return false
	}
	log.Info("ending", "why", "the command it was reserved for has ended", "grace", options.grace.String())
	return true
}

func settleIn(options serveOptions, serving *server.Server, log *slog.Logger) {
	brought, err := readSetup(options.config)
	if err != nil {
		log.Warn("settling.unreadable", "error", err)
	}
	watch := settling.NewWatch()
	if err := settling.Listen(options.port, watch, log); err != nil {
		log.Warn("settling.not_told", "error", err)
	}
	serving.Settle(brought, watch)
}

// lastWords is time for the sessions that have just ended to say how.
const lastWords = 100 * time.Millisecond

func parseServe(arguments []string) (serveOptions, error) {
	var options serveOptions
	flags := flag.NewFlagSet("serve", flag.ContinueOnError)
	flags.StringVar(&options.config, "config", "/gpudev/config",
		"folder with host_key, authorized_keys and, as wanted, environment, greeting, hosts, mesh_key")
	flags.StringVar(&options.listen, "listen", "", "address to listen on; all of them when empty")
	flags.IntVar(&options.port, "port", usualPort, "port to listen on")
	flags.StringVar(&options.home, "home", "/home/"+username, "the user's home")
	flags.IntVar(&options.uid, "uid", 1000, "the user's number, and their group's")
	flags.DurationVar(&options.grace, "grace", 15*time.Second, "after SIGTERM, how long sessions may take to end")
	flags.DurationVar(&options.login, "login-time", 2*time.Minute, "how long logging in may take")
	flags.DurationVar(&options.keepalive, "keepalive", 30*time.Second, "silence after which a client is asked whether it is there")
	flags.StringVar(&options.lastWords, "last-words", "/dev/termination-log",
		"file that hears how the command ended that this dev server was reserved for")
	err := flags.Parse(arguments)
	return options, err
}

func readHostKey(path string) (ssh.Signer, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("there is no host key, so this is no dev server: %w", err)
	}
	key, err := ssh.ParsePrivateKey(text)
	if err != nil {
		return nil, fmt.Errorf("reading the host key %s: %w", path, err)
	}
	return key, nil
}

func readOptional(path string) ([]byte, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return text, err
}

var hostName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9.-]*$`)

// readMesh finds what the members of a gang share: a key to reach each other, our host key, and their names.
func readMesh(options serveOptions, hostKey ssh.PublicKey) (*setup.Mesh, ssh.PublicKey, error) {
	text, err := readOptional(filepath.Join(options.config, "mesh_key"))
	if err != nil || text == nil {
		return nil, nil, err
	}
	key, err := ssh.ParsePrivateKey(text)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the mesh key: %w", err)
	}
	environment, err := readOptional(filepath.Join(options.config, "environment"))
	if err != nil {
		return nil, nil, err
	}
	mesh := &setup.Mesh{
		Key: text, HostKey: string(ssh.MarshalAuthorizedKey(hostKey)), User: username, Port: options.port,
	}
	for host := range strings.SplitSeq(server.FromFile(environment, "GPU_DEV_HOSTS"), ",") {
		if hostName.MatchString(host) {
			mesh.Hosts = append(mesh.Hosts, host)
		}
	}
	return mesh, key.PublicKey(), nil
}

// hearAllSignals: one that we were started to ignore would be ignored by every session, too; one that is heard is not.
func hearAllSignals() {
	unheard := make(chan os.Signal, 1)
	signal.Notify(unheard, unix.SIGHUP, unix.SIGPIPE, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU, unix.SIGQUIT,
		unix.SIGUSR1, unix.SIGUSR2, unix.SIGALRM, unix.SIGWINCH, unix.SIGXFSZ)
	go func() {
		for range unheard {
		}
	}()
}
